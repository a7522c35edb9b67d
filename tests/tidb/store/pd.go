package main

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"

	"github.com/pingcap/kvproto/pkg/meta_storagepb"
	"github.com/pingcap/kvproto/pkg/pdpb"
	"github.com/pingcap/kvproto/pkg/resource_manager"
	"github.com/pingcap/tidb/pkg/store/mockstore/unistore/tikv"
	pd "github.com/tikv/pd/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// driver is the placement driver: the clock of all servers, and the list of regions. What it lacks
// is answered by Unimplemented.
type driver struct {
	pdpb.UnimplementedPDServer
	placement *tikv.MockPD
	url       string // its own

	clock sync.Mutex
}

func header() *pdpb.ResponseHeader { return &pdpb.ResponseHeader{ClusterId: clusterID} }

// GetMembers is the first call of each client.
func (d *driver) GetMembers(context.Context, *pdpb.GetMembersRequest) (*pdpb.GetMembersResponse, error) {
	leader := &pdpb.Member{Name: "store", MemberId: 1, ClientUrls: []string{d.url}}
	return &pdpb.GetMembersResponse{Header: header(), Members: []*pdpb.Member{leader}, Leader: leader, EtcdLeader: leader}, nil
}

// Tso hands out timestamps.
func (d *driver) Tso(stream pdpb.PD_TsoServer) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = stream.Send(&pdpb.TsoResponse{Header: header(), Count: request.Count, Timestamp: d.timestamps(request.Count)})
		}
		if err != nil {
			return err
		}
	}
}

// timestamps returns the last of n that follow each other: those before it are known by their number.
func (d *driver) timestamps(n uint32) *pdpb.Timestamp {
	d.clock.Lock()
	defer d.clock.Unlock()
	var last pdpb.Timestamp
	for got := uint32(0); got < n; got++ {
		// Of the one sequence that the store has, too.
		physical, logical := tikv.GetTS()
		if physical != last.Physical || logical != last.Logical+1 {
			got = 0
		}
		last.Physical, last.Logical = physical, logical
	}
	return &last
}

// AllocID returns an ID that no other region or peer has.
func (d *driver) AllocID(ctx context.Context, _ *pdpb.AllocIDRequest) (*pdpb.AllocIDResponse, error) {
	id, err := d.placement.AllocID(ctx)
	return &pdpb.AllocIDResponse{Header: header(), Id: id}, err
}

// GetStore returns the address of the store.
func (d *driver) GetStore(ctx context.Context, r *pdpb.GetStoreRequest) (*pdpb.GetStoreResponse, error) {
	stores, err := d.placement.GetAllStores(ctx)
	for _, s := range stores {
		if s.Id == r.StoreId {
			return &pdpb.GetStoreResponse{Header: header(), Store: s}, err
		}
	}
	return nil, status.Errorf(codes.NotFound, "store %d", r.StoreId)
}

// GetAllStores returns the store.
func (d *driver) GetAllStores(ctx context.Context, _ *pdpb.GetAllStoresRequest) (*pdpb.GetAllStoresResponse, error) {
	stores, err := d.placement.GetAllStores(ctx)
	return &pdpb.GetAllStoresResponse{Header: header(), Stores: stores}, err
}

// GetRegion returns the region of a key.
func (d *driver) GetRegion(ctx context.Context, r *pdpb.GetRegionRequest) (*pdpb.GetRegionResponse, error) {
	return region(d.placement.GetRegion(ctx, r.RegionKey))
}

// GetPrevRegion returns the region that ends where that of a key begins.
func (d *driver) GetPrevRegion(ctx context.Context, r *pdpb.GetRegionRequest) (*pdpb.GetRegionResponse, error) {
	return region(d.placement.GetPrevRegion(ctx, r.RegionKey))
}

// GetRegionByID returns a region.
func (d *driver) GetRegionByID(ctx context.Context, r *pdpb.GetRegionByIDRequest) (*pdpb.GetRegionResponse, error) {
	return region(d.placement.GetRegionByID(ctx, r.RegionId))
}

// region is the reply with a region, or with none.
func region(r *pd.Region, err error) (*pdpb.GetRegionResponse, error) {
	reply := &pdpb.GetRegionResponse{Header: header()}
	if r != nil {
		reply.Region, reply.Leader = r.Meta, r.Leader
	}
	return reply, err
}

// ScanRegions returns the regions of a range.
func (d *driver) ScanRegions(ctx context.Context, r *pdpb.ScanRegionsRequest) (*pdpb.ScanRegionsResponse, error) {
	found, err := d.placement.ScanRegions(ctx, r.StartKey, r.EndKey, int(r.Limit))
	return &pdpb.ScanRegionsResponse{Header: header(), Regions: regions(found)}, err
}

// BatchScanRegions returns the regions of several ranges.
func (d *driver) BatchScanRegions(ctx context.Context, r *pdpb.BatchScanRegionsRequest) (*pdpb.BatchScanRegionsResponse, error) {
	var ranges []pd.KeyRange
	for _, one := range r.Ranges {
		ranges = append(ranges, pd.KeyRange{StartKey: one.StartKey, EndKey: one.EndKey})
	}
	found, err := d.placement.BatchScanRegions(ctx, ranges, int(r.Limit))
	return &pdpb.BatchScanRegionsResponse{Header: header(), Regions: regions(found)}, err
}

func regions(found []*pd.Region) (all []*pdpb.Region) {
	for _, r := range found {
		all = append(all, &pdpb.Region{Region: r.Meta, Leader: r.Leader})
	}
	return all
}

// GetGCSafePoint returns the time before which versions of rows are removed: none, since the servers run
// without garbage collection.
func (d *driver) GetGCSafePoint(ctx context.Context, _ *pdpb.GetGCSafePointRequest) (*pdpb.GetGCSafePointResponse, error) {
	point, err := d.placement.GetGCSafePoint(ctx)
	return &pdpb.GetGCSafePointResponse{Header: header(), SafePoint: point}, err
}

// ScatterRegion has nowhere else to move a region to.
func (*driver) ScatterRegion(context.Context, *pdpb.ScatterRegionRequest) (*pdpb.ScatterRegionResponse, error) {
	return &pdpb.ScatterRegionResponse{Header: header(), FinishedPercentage: 100}, nil
}

// GetOperator says that the region was moved.
func (*driver) GetOperator(context.Context, *pdpb.GetOperatorRequest) (*pdpb.GetOperatorResponse, error) {
	return &pdpb.GetOperatorResponse{Header: header(), Status: pdpb.OperatorStatus_SUCCESS}, nil
}

// GetExternalTimestamp returns that of external reads, which nobody sets.
func (d *driver) GetExternalTimestamp(ctx context.Context, _ *pdpb.GetExternalTimestampRequest) (*pdpb.GetExternalTimestampResponse, error) {
	ts, err := d.placement.GetExternalTimestamp(ctx)
	return &pdpb.GetExternalTimestampResponse{Header: header(), Timestamp: ts}, err
}

// settings is the store of settings, in which there is none, and none is made.
type settings struct {
	meta_storagepb.UnimplementedMetaStorageServer
}

// Get finds nothing.
func (*settings) Get(context.Context, *meta_storagepb.GetRequest) (*meta_storagepb.GetResponse, error) {
	return &meta_storagepb.GetResponse{Header: &meta_storagepb.ResponseHeader{ClusterId: clusterID}}, nil
}

// Watch never has anything to say.
func (*settings) Watch(_ *meta_storagepb.WatchRequest, stream meta_storagepb.MetaStorage_WatchServer) error {
	<-stream.Context().Done()
	return nil
}

// resources limits no use of resources.
type resources struct {
	resource_manager.UnimplementedResourceManagerServer
}

// GetResourceGroup returns a group without a limit.
func (*resources) GetResourceGroup(_ context.Context, r *resource_manager.GetResourceGroupRequest) (*resource_manager.GetResourceGroupResponse, error) {
	unlimited := &resource_manager.TokenLimitSettings{FillRate: math.MaxInt32, BurstLimit: -1}
	return &resource_manager.GetResourceGroupResponse{Group: &resource_manager.ResourceGroup{
		Name: r.ResourceGroupName, Mode: resource_manager.GroupMode_RUMode, Priority: 8,
		RUSettings: &resource_manager.GroupRequestUnitSettings{RU: &resource_manager.TokenBucket{Settings: unlimited}},
	}}, nil
}

// AcquireTokenBuckets takes note of what the servers have used.
func (*resources) AcquireTokenBuckets(stream resource_manager.ResourceManager_AcquireTokenBucketsServer) error {
	for {
		_, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = stream.Send(&resource_manager.TokenBucketsResponse{})
		}
		if err != nil {
			return err
		}
	}
}
