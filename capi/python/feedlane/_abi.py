# SPDX-License-Identifier: Apache-2.0
"""feedlane.h in ctypes: constants, structs and functions. Nothing here has an opinion; capi/python/tests/abi_test.py
compares every size, offset and argument with the record of the header, capi/abi/interface.json."""
import ctypes as c

from . import _library

OK, END, TIMEOUT, AGAIN, INTERRUPTED, SLOTS_HELD, ABANDONED = range(7)
E_ARGUMENT, E_STATE, E_BUSY, E_FORKED, E_STALE, E_MEMORY, E_LIMIT, E_OS, E_ABI = range(-1, -10, -1)
E_CORRUPT, E_PEER_DEAD, E_SAMPLE, E_INIT, E_HUNG, E_QUARANTINED, E_RESTARTS, E_DEVICE, E_UNSUPPORTED = range(-10, -19, -1)
SAMPLE_RETRIED, SAMPLE_SUBSTITUTED, SAMPLE_SKIPPED = range(1, 4)
FOREVER = 2**63 - 1
MAX_NDIM, MAX_TENSORS, UNBATCHED = 8, 64, -1
SHUFFLE_TORCH, SHUFFLE_FEISTEL, SHUFFLE_TORCH_LOADER = range(3)
START_EXTERNAL = 3
DISPATCH_LEAST_LOADED, DISPATCH_ROUND_ROBIN = range(2)

_i32, _i64, _u32, _u64, _size, _p, _s = c.c_int32, c.c_int64, c.c_uint32, c.c_uint64, c.c_size_t, c.c_void_p, c.c_char_p


class Sized(c.Structure):
    """A struct that begins with its size. It says so itself, zero means default in every other field."""

    def __init__(self, **fields):
        super().__init__(size=c.sizeof(type(self)), **fields)

    def values(self, *but):
        """By name, without the size and `but`."""
        return {name: getattr(self, name) for name, _ in self._fields_ if name not in ("size", *but)}


def _struct(name, base, /, **fields):
    first = [("size", _size)] if base is Sized else []
    return type(name, (base,), {"_fields_": first + list(fields.items()), "__module__": __name__})


Error = _struct(
    "Error", Sized, code=_i32, os_errno=_i32, worker=_i32, attempt=_i32, transient=_i32, reserved=_i32, epoch=_i64,
    batch=_i64, sample=_i64, found=_i64, needed=_i64, argument=c.c_char * 64, text=c.c_char * 384, detail=_p,
    detail_cap=_u64, detail_len=_u64)
Dtype = _struct("Dtype", c.Structure, code=c.c_uint8, bits=c.c_uint8, lanes=c.c_uint16)
Tensor = _struct("Tensor", c.Structure, name=_s, data=_p, bytes=_u64, offset=_u64, dtype=Dtype, ndim=_i32,
                 shape=_i64 * MAX_NDIM, strides=_i64 * MAX_NDIM)
Field = _struct("Field", Sized, name=_s, dtype=Dtype, ndim=_i32, shape=_i64 * MAX_NDIM)
RandomConfig = _struct("RandomConfig", Sized, length=_i64, seed=_u64, num_samples=_i64, replacement=_i32, shuffle=_i32)
WeightedConfig = _struct("WeightedConfig", Sized, num_samples=_i64, seed=_u64, without_replacement=_i32, reserved=_i32)
DistributedConfig = _struct("DistributedConfig", Sized, length=_i64, world=_i32, rank=_i32, seed=_u64, no_shuffle=_i32,
                            drop_last=_i32, shuffle=_i32, detect_off=_i32)
Rank = _struct("Rank", Sized, rank=_i32, world=_i32, source=c.c_char * 16, warning=c.c_char * 384)
SAMPLER_RESTART = c.CFUNCTYPE(_i32, _p, _i64, _u64, c.POINTER(Error))
SAMPLER_NEXT = c.CFUNCTYPE(_i32, _p, c.POINTER(_i64), _u64, c.POINTER(_u64), c.POINTER(Error))
SamplerCallbacks = _struct("SamplerCallbacks", Sized, user_data=_p, restart=SAMPLER_RESTART, next=SAMPLER_NEXT, save=_p,
                           load=_p, drop=_p, length=_i64, batch_rows=_i64)
Task = _struct("Task", Sized, id=_u64, epoch=_i64, batch=_i64, attempt=_i32, tensor_count=_i32, indices=c.POINTER(_i64),
               count=_u64, seeds=c.POINTER(_u64), tensors=c.POINTER(Tensor), worker=_p, first=_i32, reserved=_i32,
               delivered=_u64, state=_p, state_bytes=_u64, library=_p)
WorkerInfo = _struct("WorkerInfo", Sized, id=_i32, count=_i32, generation=_i32, iterable=_i32, seed=_u64, config=_p,
                     config_bytes=_u64, fields=c.POINTER(Field), field_count=_u64, retries=_i32, reserved=_i32,
                     retry_backoff_ns=_i64, epoch=_i64)
DATASET_OPEN = c.CFUNCTYPE(_i32, _p, c.POINTER(WorkerInfo), c.POINTER(_p), c.POINTER(Error))
DATASET_FETCH = c.CFUNCTYPE(_i32, _p, c.POINTER(Task), c.POINTER(Error))
DATASET_RESTART = c.CFUNCTYPE(_i32, _p, _i64, c.POINTER(Error))
DATASET_SUBSTITUTE = c.CFUNCTYPE(_i32, _p, _i64, _u64, _u32, c.POINTER(_i64), c.POINTER(Error))
Dataset = _struct("Dataset", Sized, user_data=_p, open=DATASET_OPEN, get=_p, fetch=DATASET_FETCH, close=_p, next=_p,
                  restart=DATASET_RESTART, save=_p, load=_p, substitute=DATASET_SUBSTITUTE)
LoaderConfig = _struct(
    "LoaderConfig", Sized, sampler=_p, dataset=c.POINTER(Dataset), fields=c.POINTER(Field), field_count=_u64,
    batch_size=_i64, iterable_length=_i64, drop_last=_i32, iterable=_i32, deterministic=_i32, out_of_order=_i32,
    seed=_u64, state=_p, state_bytes=_u64, has_seed=_i32, reserved=_i32, workers=_i32, start=_i32,
    prefetch_factor=_i32, dispatch=_i32, keep_workers=_i32, no_lifeline=_i32, argv=c.POINTER(_s), envp=c.POINTER(_s),
    worker_config=_p, worker_config_bytes=_u64, start_timeout_ns=_i64, stop_timeout_ns=_i64, term_timeout_ns=_i64,
    task_timeout_ns=_i64, max_restarts=_i32, max_kills_per_batch=_i32, retries=_i32, substitute=_i32,
    retry_backoff_ns=_i64, skip_budget=_i64, slot_bytes=_u64, arena_bytes=_u64, pinned=_p, held=_i32, staged=_i32)
Batch = _struct("Batch", Sized, token=_u64, epoch=_i64, batch=_i64, worker=_i32, attempt=_i32,
                tensors=c.POINTER(Tensor), tensor_count=_u64, indices=c.POINTER(_i64), count=_u64,
                skipped=c.POINTER(_i64), skipped_count=_u64, metadata=_p, metadata_bytes=_u64)
StateInfo = _struct("StateInfo", Sized, epoch=_i64, batch=_i64, samples=_i64, base_seed=_u64, ended=_i32, iterable=_i32)
PoolConfig = _struct("PoolConfig", Sized, backend=_s, custom=_p, device=_i32, buffers=_u32, buffer_bytes=_u64,
                     budget_bytes=_u64)
PoolStats = _struct("PoolStats", Sized, buffers=_u64, in_use=_u64, pending=_u64, registered_bytes=_u64, acquired=_u64,
                    waited_ns=_u64, failures=_u64)
Stats = _struct(
    "Stats", Sized, batches=_u64, samples=_u64, bytes=_u64, epochs=_u64, wait_ns=_u64, restarts=_u64, redispatched=_u64,
    quarantined=_u64, invalid_results=_u64, late_results=_u64, slots=_u64, slots_free=_u64, slots_held=_u64,
    control_bytes=_u64, data_bytes=_u64, reserved_bytes=_u64, retried=_u64, substituted=_u64, skipped=_u64, hung=_u64,
    rank_source=c.c_char * 16, huge_bytes=_u64)
WorkerStats = _struct("WorkerStats", Sized, pid=_i64, state=_i32, generation=_i32, tasks=_u64, samples=_u64, bytes=_u64,
                      errors=_u64, work_ns=_u64, wait_ns=_u64)
Event = _struct("Event", Sized, kind=_i32, reserved=_i32, time_ns=_u64, lost=_u64, what=Error)

# The C names, for the test that compares them with the header.
STRUCTS = {
    "feedlane_error": Error, "feedlane_dtype": Dtype, "feedlane_tensor": Tensor, "feedlane_field": Field,
    "feedlane_random_config": RandomConfig, "feedlane_weighted_config": WeightedConfig,
    "feedlane_distributed_config": DistributedConfig, "feedlane_rank": Rank,
    "feedlane_sampler_callbacks": SamplerCallbacks,
    "feedlane_task": Task, "feedlane_worker_info": WorkerInfo, "feedlane_dataset": Dataset,
    "feedlane_loader_config": LoaderConfig, "feedlane_batch": Batch, "feedlane_state_info": StateInfo,
    "feedlane_pool_config": PoolConfig, "feedlane_pool_stats": PoolStats,
    "feedlane_stats": Stats, "feedlane_worker_stats": WorkerStats, "feedlane_event": Event,
}
# As docs/integrating.md has them: a wrong one is found here, not in a crash.
for _type, _bytes in {Error: 544, RandomConfig: 40, LoaderConfig: 256, Field: 88, Batch: 104, Task: 120, Tensor: 168,
                      Dtype: 4, WorkerInfo: 88}.items():
    if c.sizeof(_type) != _bytes:
        raise ImportError(f"{_type.__name__} has {c.sizeof(_type)} bytes here, {_bytes} in feedlane.h")

library, library_path = _library.load()
core = _library.load_core(library_path)

_err, _out = c.POINTER(Error), c.POINTER(_p)
_FUNCTIONS = {
    "feedlane_status_name": [_i32], "feedlane_status_text": [_i32],
    "feedlane_sampler_sequential": [_i64, _out, _err],
    "feedlane_sampler_random": [c.POINTER(RandomConfig), _out, _err],
    "feedlane_sampler_subset": [c.POINTER(_i64), _u64, _i32, _u64, _out, _err],
    "feedlane_sampler_weighted": [c.POINTER(c.c_double), _u64, c.POINTER(WeightedConfig), _out, _err],
    "feedlane_sampler_batch": [_p, _i64, _i32, _out, _err],
    "feedlane_sampler_distributed": [c.POINTER(DistributedConfig), _out, _err],
    "feedlane_sampler_custom": [c.POINTER(SamplerCallbacks), _out, _err],
    "feedlane_sampler_restart": [_p, _i64, _err],
    "feedlane_sampler_next": [_p, c.POINTER(_i64), _u64, c.POINTER(_u64), _err],
    "feedlane_sampler_length": [_p, c.POINTER(_i64)],
    "feedlane_sampler_destroy": [_out],
    "feedlane_rank_detect": [c.POINTER(Rank), _err],
    "feedlane_torch_base_seed": [_u64, _i64, c.POINTER(_u64), _err],
    "feedlane_worker_fd": [],
    "feedlane_worker_attach": [_i32, _i64, _out, _err],
    "feedlane_worker_get_info": [_p, c.POINTER(WorkerInfo)],
    "feedlane_worker_ready": [_p, _i32, _s, _err],
    "feedlane_worker_next": [_p, _i64, c.POINTER(c.POINTER(Task)), _err],
    "feedlane_worker_check": [_p],
    "feedlane_worker_detach": [_out],
    "feedlane_task_commit": [c.POINTER(Task), _u64, _err],
    "feedlane_task_fail": [c.POINTER(Task), _i64, _i32, _s, _s, _err],
    "feedlane_task_exhausted": [c.POINTER(Task), _err],
    "feedlane_task_tensor": [c.POINTER(Task), _i32, c.POINTER(Field), c.POINTER(Tensor), _err],
    "feedlane_task_metadata": [c.POINTER(Task), _s, _u64, _err],
    "feedlane_task_rows": [c.POINTER(Task), _u64, _err],
    "feedlane_task_record": [c.POINTER(Task), _u64, _i32, _i32, _u32, _i64, _s, _err],
    "feedlane_loader_create": [c.POINTER(LoaderConfig), _out, _err],
    "feedlane_loader_destroy": [_out],
    "feedlane_loader_unref": [_p],
    "feedlane_loader_begin": [_p, _i64, _err],
    "feedlane_loader_next": [_p, _i64, c.POINTER(Batch), _err],
    "feedlane_loader_stop": [_p, _err],
    "feedlane_loader_open_worker": [_p, c.POINTER(_i32), c.POINTER(_i32), _err],
    "feedlane_loader_length": [_p, c.POINTER(_i64)],
    "feedlane_loader_state": [_p, _u64, _p, _u64, c.POINTER(_u64), _err],
    "feedlane_state_read": [_s, _u64, c.POINTER(StateInfo), _err],
    "feedlane_batch_release": [_p, _u64],
    "feedlane_batch_record_stream": [_p, _u64, _p, _err],
    "feedlane_pool_create": [c.POINTER(PoolConfig), _out, _err],
    "feedlane_pool_get_stats": [_p, c.POINTER(PoolStats)],
    "feedlane_pool_destroy": [_out],
    "feedlane_batch_dlpack": [_p, _u64, _i32, _i32, _out, _err],
    "feedlane_batch_dlpack_legacy": [_p, _u64, _i32, _i32, _out, _err],
    "feedlane_loader_get_stats": [_p, c.POINTER(Stats)],
    "feedlane_loader_get_worker_stats": [_p, _i32, c.POINTER(WorkerStats)],
    "feedlane_loader_event": [_p, c.POINTER(Event)],
}
for _name, _arguments in _FUNCTIONS.items():
    _function = getattr(library, _name)
    _function.argtypes = _arguments
    _function.restype = _s if _name.startswith("feedlane_status_") else _i32
