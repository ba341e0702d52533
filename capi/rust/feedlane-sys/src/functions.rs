// SPDX-License-Identifier: Apache-2.0
//! The functions of `feedlane.h`, in the header's order.
use std::ffi::c_void;
use std::os::raw::c_char;

use crate::arena::*;
use crate::error::*;
use crate::observe::*;
use crate::pool::*;
use crate::sampler::*;
use crate::share::*;
use crate::structs::*;

#[link(name = "feedlane")]
extern "C" {
    pub fn feedlane_abi_version() -> u32;
    pub fn feedlane_version() -> *const c_char;
    pub fn feedlane_status_name(status: i32) -> *const c_char;
    pub fn feedlane_status_text(status: i32) -> *const c_char;
    pub fn feedlane_arena_create(
        config: *const feedlane_arena_config,
        out: *mut *mut feedlane_loader,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_arena_offer(a: *mut feedlane_loader, fd: *mut i32, err: *mut feedlane_error) -> i32;
    pub fn feedlane_arena_join(
        fd: i32,
        path: *const c_char,
        timeout_ns: i64,
        out: *mut *mut feedlane_loader,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_arena_reserve(
        a: *mut feedlane_loader,
        put: *const feedlane_put,
        timeout_ns: i64,
        out: *mut feedlane_batch,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_arena_publish(
        a: *mut feedlane_loader,
        token: u64,
        timeout_ns: i64,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_arena_get(
        a: *mut feedlane_loader,
        key: *const c_void,
        key_bytes: u64,
        flags: i32,
        timeout_ns: i64,
        out: *mut feedlane_batch,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_arena_receive(
        a: *mut feedlane_loader,
        timeout_ns: i64,
        out: *mut feedlane_batch,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_arena_drop(
        a: *mut feedlane_loader,
        key: *const c_void,
        key_bytes: u64,
        timeout_ns: i64,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_arena_arm(a: *mut feedlane_loader, fd: *mut i32) -> i32;
    pub fn feedlane_arena_get_stats(a: *mut feedlane_loader, out: *mut feedlane_arena_stats) -> i32;
    pub fn feedlane_arena_destroy(a: *mut *mut feedlane_loader) -> i32;
    pub fn feedlane_rx_create(
        config: *const feedlane_ring_config,
        out: *mut *mut feedlane_rx,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_rx_offer(rx: *mut feedlane_rx, fd: *mut i32, err: *mut feedlane_error) -> i32;
    pub fn feedlane_rx_peek(
        rx: *mut feedlane_rx,
        want: u32,
        timeout_ns: i64,
        got: *mut feedlane_span,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_rx_release(rx: *mut feedlane_rx, lane: u32, count: u32, err: *mut feedlane_error) -> i32;
    pub fn feedlane_rx_receive(
        rx: *mut feedlane_rx,
        messages: *mut c_void,
        want: u32,
        timeout_ns: i64,
        got: *mut u32,
        lane: *mut u32,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_rx_arm(rx: *mut feedlane_rx, fd: *mut i32) -> i32;
    pub fn feedlane_rx_destroy(rx: *mut *mut feedlane_rx) -> i32;
    pub fn feedlane_rx_close(rx: *mut feedlane_rx) -> i32;
    pub fn feedlane_tx_attach(
        fd: i32,
        path: *const c_char,
        timeout_ns: i64,
        out: *mut *mut feedlane_tx,
        message_bytes: *mut u32,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_tx_reserve(
        tx: *mut feedlane_tx,
        want: u32,
        timeout_ns: i64,
        got: *mut feedlane_span,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_tx_commit(tx: *mut feedlane_tx, count: u32, err: *mut feedlane_error) -> i32;
    pub fn feedlane_tx_send(
        tx: *mut feedlane_tx,
        messages: *const c_void,
        count: u32,
        timeout_ns: i64,
        sent: *mut u32,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_tx_destroy(tx: *mut *mut feedlane_tx) -> i32;
    pub fn feedlane_tx_close(tx: *mut feedlane_tx) -> i32;
    pub fn feedlane_pool_create(
        config: *const feedlane_pool_config,
        out: *mut *mut feedlane_pool,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_pool_acquire(
        p: *mut feedlane_pool,
        timeout_ns: i64,
        out: *mut feedlane_buffer,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_pool_release(
        p: *mut feedlane_pool,
        token: u64,
        stream: *mut c_void,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_pool_copy(
        p: *mut feedlane_pool,
        device_memory: *mut c_void,
        host: *const c_void,
        bytes: u64,
        stream: *mut c_void,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_pool_register(
        p: *mut feedlane_pool,
        address: *mut c_void,
        bytes: u64,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_pool_unregister(p: *mut feedlane_pool, address: *mut c_void, err: *mut feedlane_error) -> i32;
    pub fn feedlane_pool_get_stats(p: *const feedlane_pool, out: *mut feedlane_pool_stats) -> i32;
    pub fn feedlane_pool_destroy(p: *mut *mut feedlane_pool) -> i32;
    pub fn feedlane_sampler_create(
        config: *const feedlane_sampler_config,
        out: *mut *mut feedlane_sampler,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_rank_detect(out: *mut feedlane_rank, err: *mut feedlane_error) -> i32;
    pub fn feedlane_sampler_restart(s: *mut feedlane_sampler, epoch: i64, err: *mut feedlane_error) -> i32;
    pub fn feedlane_sampler_next(
        s: *mut feedlane_sampler,
        indices: *mut i64,
        cap: u64,
        got: *mut u64,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_sampler_length(s: *const feedlane_sampler, length: *mut i64) -> i32;
    pub fn feedlane_sampler_save(
        s: *mut feedlane_sampler,
        state: *mut c_void,
        cap: u64,
        bytes: *mut u64,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_sampler_load(
        s: *mut feedlane_sampler,
        state: *const c_void,
        bytes: u64,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_sampler_destroy(s: *mut *mut feedlane_sampler) -> i32;
    pub fn feedlane_task_tensor(
        task: *const feedlane_task,
        index: i32,
        full: *const feedlane_field,
        out: *mut feedlane_tensor,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_task_store(
        task: *const feedlane_task,
        kind: i32,
        bytes: *const c_void,
        count: u64,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_task_sample_failed(
        task: *const feedlane_task,
        position: u64,
        failure: *const feedlane_error,
        substitute: feedlane_dataset_substitute_fn,
        user_data: *mut c_void,
        index: *mut i64,
        wait_ns: *mut i64,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_task_ahead(
        task: *const feedlane_task,
        after: u64,
        out: *mut feedlane_ahead,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_worker_fd() -> i32;
    pub fn feedlane_worker_attach(
        fd: i32,
        l: *mut feedlane_loader,
        timeout_ns: i64,
        out: *mut *mut feedlane_worker,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_worker_get_info(w: *const feedlane_worker, info: *mut feedlane_worker_info) -> i32;
    pub fn feedlane_worker_ready(
        w: *mut feedlane_worker,
        status: i32,
        text: *const c_char,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_worker_next(
        w: *mut feedlane_worker,
        timeout_ns: i64,
        task: *mut *const feedlane_task,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_worker_check(w: *const feedlane_worker) -> i32;
    pub fn feedlane_worker_arm(w: *mut feedlane_worker, fd: *mut i32) -> i32;
    pub fn feedlane_worker_scratch(w: *mut feedlane_worker, bytes: u64, align: u64) -> *mut c_void;
    pub fn feedlane_task_commit(task: *const feedlane_task, rows: u64, err: *mut feedlane_error) -> i32;
    pub fn feedlane_task_fail(
        task: *const feedlane_task,
        position: i64,
        transient: i32,
        text: *const c_char,
        traceback: *const c_char,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_worker_run(
        fd: i32,
        l: *mut feedlane_loader,
        dataset: *const feedlane_dataset,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_worker_destroy(w: *mut *mut feedlane_worker) -> i32;
    pub fn feedlane_worker_close(w: *mut feedlane_worker) -> i32;
    pub fn feedlane_batch_retain(l: *mut feedlane_loader, token: u64) -> i32;
    pub fn feedlane_batch_release(l: *mut feedlane_loader, token: u64) -> i32;
    pub fn feedlane_batch_release_on(
        l: *mut feedlane_loader,
        token: u64,
        stream: *mut c_void,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_batch_record_stream(
        l: *mut feedlane_loader,
        token: u64,
        stream: *mut c_void,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_loader_create(
        config: *const feedlane_loader_config,
        out: *mut *mut feedlane_loader,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_loader_destroy(l: *mut *mut feedlane_loader) -> i32;
    pub fn feedlane_loader_close(l: *mut feedlane_loader) -> i32;
    pub fn feedlane_loader_ref(l: *mut feedlane_loader) -> i32;
    pub fn feedlane_loader_unref(l: *mut feedlane_loader) -> i32;
    pub fn feedlane_loader_begin(l: *mut feedlane_loader, epoch: i64, err: *mut feedlane_error) -> i32;
    pub fn feedlane_loader_next(
        l: *mut feedlane_loader,
        timeout_ns: i64,
        out: *mut feedlane_batch,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_loader_poll(l: *mut feedlane_loader, err: *mut feedlane_error) -> i32;
    pub fn feedlane_loader_arm(l: *mut feedlane_loader, fd: *mut i32) -> i32;
    pub fn feedlane_loader_interrupt(l: *mut feedlane_loader) -> i32;
    pub fn feedlane_loader_stop(l: *mut feedlane_loader, err: *mut feedlane_error) -> i32;
    pub fn feedlane_loader_open_worker(
        l: *mut feedlane_loader,
        id: *mut i32,
        fd: *mut i32,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_loader_run_stager(l: *mut feedlane_loader, err: *mut feedlane_error) -> i32;
    pub fn feedlane_loader_state(
        l: *mut feedlane_loader,
        token: u64,
        buffer: *mut c_void,
        cap: u64,
        bytes: *mut u64,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_state_read(
        state: *const c_void,
        bytes: u64,
        out: *mut feedlane_state_info,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_loader_open_consumer(
        l: *mut feedlane_loader,
        config: *const feedlane_consumer_config,
        id: *mut i32,
        fd: *mut i32,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_loader_serve(l: *mut feedlane_loader, timeout_ns: i64, err: *mut feedlane_error) -> i32;
    pub fn feedlane_loader_join(
        fd: i32,
        path: *const c_char,
        config: *const feedlane_consumer_config,
        timeout_ns: i64,
        out: *mut *mut feedlane_loader,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_loader_get_consumer(l: *mut feedlane_loader, nth: i32, out: *mut feedlane_consumer_stats) -> i32;
    pub fn feedlane_batch_dlpack(
        l: *mut feedlane_loader,
        token: u64,
        tensor: i32,
        flags: i32,
        out: *mut *mut c_void,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_monitor_of(
        l: *mut feedlane_loader,
        out: *mut *mut feedlane_monitor,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_monitor_open(pid: i64, nth: i32, out: *mut *mut feedlane_monitor, err: *mut feedlane_error) -> i32;
    pub fn feedlane_monitor_get_stats(m: *const feedlane_monitor, out: *mut feedlane_stats) -> i32;
    pub fn feedlane_monitor_get_worker_stats(
        m: *const feedlane_monitor,
        worker: i32,
        out: *mut feedlane_worker_stats,
    ) -> i32;
    pub fn feedlane_monitor_destroy(m: *mut *mut feedlane_monitor) -> i32;
    pub fn feedlane_loader_event(l: *mut feedlane_loader, out: *mut feedlane_event) -> i32;
    pub fn feedlane_monitor_get_info(m: *const feedlane_monitor, out: *mut feedlane_loader_info) -> i32;
    pub fn feedlane_monitor_get_timings(m: *const feedlane_monitor, worker: i32, out: *mut feedlane_timings) -> i32;
    pub fn feedlane_monitor_get_trace(
        m: *const feedlane_monitor,
        from: u64,
        records: *mut feedlane_batch_record,
        cap: u64,
        count: *mut u64,
    ) -> i32;
    pub fn feedlane_monitor_get_error(m: *const feedlane_monitor, index: i32, out: *mut feedlane_error_record) -> i32;
    pub fn feedlane_monitor_diagnose(m: *mut feedlane_monitor, out: *mut feedlane_diagnosis) -> i32;
    pub fn feedlane_monitor_report(
        m: *mut feedlane_monitor,
        buffer: *mut c_char,
        cap: u64,
        bytes: *mut u64,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_monitor_arena(
        pid: i64,
        nth: i32,
        out: *mut feedlane_arena_stats,
        members: *mut feedlane_arena_member,
        cap: u64,
        count: *mut u64,
        err: *mut feedlane_error,
    ) -> i32;
    pub fn feedlane_monitor_ring(pid: i64, nth: i32, out: *mut feedlane_ring_info, err: *mut feedlane_error) -> i32;
}
