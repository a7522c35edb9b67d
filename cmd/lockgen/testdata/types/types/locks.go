package types

import (
	"github.com/google/uuid"

	"github.com/dca00107/lockstep/txlock"
)

//lockstep:table everything(id)
var EverythingKeys = txlock.NewFamily[uint64]("everything", txlock.Hashed())

var (
	//lockstep:table tinyints(k)
	TinyintsKeys = txlock.NewFamily[int8]("tinyints")
	//lockstep:table utinyints(k)
	UtinyintsKeys = txlock.NewFamily[uint8]("utinyints")
	//lockstep:table smallints(k)
	SmallintsKeys = txlock.NewFamily[int16]("smallints")
	//lockstep:table usmallints(k)
	UsmallintsKeys = txlock.NewFamily[uint16]("usmallints")
	//lockstep:table mediumints(k)
	MediumintsKeys = txlock.NewFamily[int32]("mediumints")
	//lockstep:table ints(k)
	IntsKeys = txlock.NewFamily[int32]("ints")
	//lockstep:table uints(k)
	UintsKeys = txlock.NewFamily[uint32]("uints")
	//lockstep:table bigints(k)
	BigintsKeys = txlock.NewFamily[int64]("bigints")
	//lockstep:table ubigints(k)
	UbigintsKeys = txlock.NewFamily[uint64]("ubigints")
	//lockstep:table chars(k)
	CharsKeys = txlock.NewFamily[string]("chars", txlock.Fold("utf8mb4_general_ci"))
	//lockstep:table varchars(k)
	VarcharsKeys = txlock.NewFamily[string]("varchars", txlock.Fold("utf8mb4_bin"))
	//lockstep:table enums(k)
	EnumsKeys = txlock.NewFamily[string]("enums", txlock.Fold("ascii_general_ci"))
	//lockstep:table varbinaries(k)
	VarbinariesKeys = txlock.NewFamily[string]("varbinaries", txlock.Exact())
	//lockstep:table uuids(k)
	UuidsKeys = txlock.NewFamily[uuid.UUID]("uuids")
	//lockstep:table buuids(k)
	BuuidsKeys = txlock.NewFamily[uuid.UUID]("buuids", txlock.Hashed())
)
