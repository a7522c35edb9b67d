// Store is what several tidb-servers of a test share: one process that speaks the protocols of
// TiKV, of PD and of etcd at one address, so that each runs with -store=tikv -path=ADDRESS.
//
//	go run ./store -addr 127.0.0.1:2379 -dir /tmp/store
//
// TiKV is unistore, which TiDB embeds for its own tests, behind its gRPC service; PD is the part of its
// API that tidb-server calls, as far as one region server and no placement need it; etcd, in which the
// servers elect the owner of schema changes, count their numbers and tell each other of schema versions,
// is etcd itself. The rows are in memory and end with the process.
//
// So it shows what several tidb-servers do to each other, and what is left by one that is killed. It has
// one copy of the rows and never splits a vote: it shows nothing of the failure of a TiKV or a PD.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/pingcap/kvproto/pkg/meta_storagepb"
	"github.com/pingcap/kvproto/pkg/metapb"
	"github.com/pingcap/kvproto/pkg/pdpb"
	"github.com/pingcap/kvproto/pkg/resource_manager"
	"github.com/pingcap/kvproto/pkg/tikvpb"
	tidblog "github.com/pingcap/log"
	"github.com/pingcap/tidb/pkg/store/mockstore/unistore/config"
	"github.com/pingcap/tidb/pkg/store/mockstore/unistore/server"
	"github.com/pingcap/tidb/pkg/store/mockstore/unistore/tikv"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const clusterID = 1

func main() {
	addr := flag.String("addr", "127.0.0.1:2379", "address of the store")
	dir := flag.String("dir", "", "directory for the files of etcd")
	flag.Parse()
	log.Fatal(serve(*addr, *dir))
}

// serve serves until something fails.
func serve(addr, dir string) error {
	logger, properties, err := tidblog.InitLogger(&tidblog.Config{Level: "warn"})
	if err != nil {
		return err
	}
	tidblog.ReplaceGlobals(logger, properties)
	rows, placement, err := newRows(addr, filepath.Join(dir, "rows"))
	if err != nil {
		return err
	}
	etcd, err := embed.StartEtcd(etcdConfig(addr, filepath.Join(dir, "etcd"), func(s *grpc.Server) {
		tikvpb.RegisterTikvServer(s, rows)
		pdpb.RegisterPDServer(s, &driver{placement: placement, url: "http://" + addr})
		meta_storagepb.RegisterMetaStorageServer(s, &settings{})
		resource_manager.RegisterResourceManagerServer(s, &resources{})
	}))
	if err != nil {
		return err
	}
	select {
	case err := <-etcd.Err():
		return err
	case <-etcd.Server.StopNotify():
		return errors.New("etcd has stopped")
	}
}

// newRows makes a store in memory, as TiDB makes it for its tests, of one region at first.
func newRows(addr, dir string) (*tiKV, *tikv.MockPD, error) {
	conf := config.DefaultConf
	conf.Server.StoreAddr, conf.Server.Raft = addr, false
	conf.Engine.DBPath, conf.Engine.VolatileMode = dir, true
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	conf.Engine.ValueThreshold, conf.Engine.NumCompactors, conf.Engine.CompactL0WhenClose = 0, 1, false
	rows, regions, placement, err := server.NewMock(&conf, clusterID)
	if err != nil {
		return nil, nil, err
	}
	store, region, peer := regions.AllocID(), regions.AllocID(), regions.AllocID()
	err = regions.Bootstrap([]*metapb.Store{{Id: store, Address: addr, Version: "8.4.0"}}, &metapb.Region{
		Id: region, RegionEpoch: &metapb.RegionEpoch{}, Peers: []*metapb.Peer{{Id: peer, StoreId: store}},
	})
	return &tiKV{rows}, placement, err
}

// etcdConfig is an etcd of one member, whose server has other services, too, as PD has etcd.
func etcdConfig(addr, dir string, register func(*grpc.Server)) *embed.Config {
	clients, members := []url.URL{{Scheme: "http", Host: addr}}, []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	c := embed.NewConfig()
	c.Dir, c.UnsafeNoFsync, c.LogLevel = dir, true, "error"
	c.ListenClientUrls, c.AdvertiseClientUrls = clients, clients
	c.ListenPeerUrls, c.AdvertisePeerUrls = members, members
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.MaxRequestBytes = 64 << 20 // of TiKV
	c.ServiceRegister = register
	// Of PD's API by HTTP tidb-server asks for this at every second.
	c.UserHandlers = map[string]http.Handler{"/pd/api/v1/min-resolved-ts": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"is_real_time": false}`)) // a client that is gone doesn't read it
	})}
	return c
}

// tiKV is unistore's server, whose process doesn't end by what unistore hasn't thought of. The latches of
// a call are released by a panic, too.
type tiKV struct{ *tikv.Server }

// KvPessimisticLock locks a row. The reply is lost where a server is cut off, and unistore doesn't know
// what to reply when it asks again, where it would take a newer row, too.
func (t *tiKV) KvPessimisticLock(ctx context.Context, r *kvrpcpb.PessimisticLockRequest) (reply *kvrpcpb.PessimisticLockResponse, err error) {
	defer func() {
		if r.WakeUpMode == kvrpcpb.PessimisticLockWakeUpMode_WakeUpModeForceLock && recover() != nil {
			reply = &kvrpcpb.PessimisticLockResponse{
				Errors:  []*kvrpcpb.KeyError{{Abort: "the lock was requested before"}},
				Results: []*kvrpcpb.PessimisticLockKeyResult{{Type: kvrpcpb.PessimisticLockKeyResultType_LockResultFailed}},
			}
		}
	}()
	return t.Server.KvPessimisticLock(ctx, r)
}

// KvPrewrite is the first half of a COMMIT. Where a lock is gone that a transaction has had, since its
// server stood still for too long, unistore reads it all the same.
func (t *tiKV) KvPrewrite(ctx context.Context, r *kvrpcpb.PrewriteRequest) (reply *kvrpcpb.PrewriteResponse, err error) {
	defer func() {
		if len(r.ForUpdateTsConstraints) > 0 && recover() != nil {
			reply = &kvrpcpb.PrewriteResponse{Errors: []*kvrpcpb.KeyError{{Abort: "pessimistic lock not found"}}} // as of other locks
		}
	}()
	return t.Server.KvPrewrite(ctx, r)
}

// GetLockWaitInfo is what information_schema.DATA_LOCK_WAITS reads.
func (*tiKV) GetLockWaitInfo(context.Context, *kvrpcpb.GetLockWaitInfoRequest) (*kvrpcpb.GetLockWaitInfoResponse, error) {
	return nil, status.Error(codes.Unimplemented, "unistore doesn't show who waits for locks")
}
