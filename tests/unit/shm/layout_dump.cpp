// SPDX-License-Identifier: Apache-2.0
// Prints what lies in shared memory and in the greetings, as this build has it, for layout_doc_test.py to compare with
// docs/layout.md:
//
//   struct NAME BYTES
//   field STRUCT OFFSET BYTES NAME TYPE
//   constant NAME VALUE
//   descriptor NUMBER NAME
//
// and for each line "loader workers slots max_rows field_count ring_capacity config_bytes slot_bytes list_bytes record_rows
// trace_records" of its input, "ring message_bytes capacity lanes", "share slots capacity", or "arena entries
// buckets leases":
//
//   plan SEGMENT REGION=OFFSET ... end=BYTES
#include <cstdio>
#include <string>
#include <type_traits>

#include "greeting/arena.hpp"
#include "greeting/ring.hpp"
#include "greeting/share.hpp"
#include "greeting/worker.hpp"
#include "shm/arena_layout.hpp"
#include "shm/plan.hpp"
#include "shm/ring_layout.hpp"
#include "shm/share_layout.hpp"

namespace {

using namespace feedlane::shm;
using namespace feedlane::worker;
using namespace feedlane::channel;
using namespace feedlane::ring;
using feedlane::arena::ArenaWelcome;
using feedlane::arena::SegmentReply;
using feedlane::arena::SegmentRequest;
namespace greeting = feedlane::greeting;
namespace arena = feedlane::arena;
namespace sharing = feedlane::sharing;  // whose greeting has names of the worker's

template <class T>
std::string type_name() {
  if constexpr (std::is_array_v<T>) {
    return type_name<std::remove_extent_t<T>>() + "[" + std::to_string(std::extent_v<T>) + "]";
  } else if constexpr (std::is_same_v<T, Word32>) {
    return "atomic u32";
  } else if constexpr (std::is_same_v<T, Word64>) {
    return "atomic u64";
  } else if constexpr (std::is_same_v<T, char>) {
    return "char";
  } else if constexpr (std::is_integral_v<T>) {
    return (std::is_signed_v<T> ? "i" : "u") + std::to_string(8 * sizeof(T));
  } else if constexpr (std::is_same_v<T, Histogram>) {
    return "Histogram";
  } else if constexpr (std::is_same_v<T, SlotHead>) {
    return "SlotHead";
  } else if constexpr (std::is_same_v<T, SlotText>) {
    return "SlotText";
  } else if constexpr (std::is_same_v<T, CatalogueHead>) {
    return "CatalogueHead";
  } else if constexpr (std::is_same_v<T, greeting::Refused>) {
    return "greeting::Refused";
  } else {
    static_assert(std::is_same_v<T, TensorRecord>);
    return "TensorRecord";
  }
}

template <class T>
void field(const char* structure, std::size_t offset, std::size_t bytes, const char* name) {
  std::printf("field %s %zu %zu %s %s\n", structure, offset, bytes, name, type_name<T>().c_str());
}

#define STRUCT(S) std::printf("struct %s %zu\n", #S, sizeof(S))
#define FIELD(S, F) field<decltype(S::F)>(#S, offsetof(S, F), sizeof(S::F), #F)
#define CONSTANT(C) std::printf("constant %s %llu\n", #C, static_cast<unsigned long long>(C))
#define DESCRIPTOR(D) std::printf("descriptor %u %s\n", static_cast<unsigned>(D), #D)

void print_control() {
  STRUCT(SegmentHeader);
  FIELD(SegmentHeader, magic), FIELD(SegmentHeader, kind), FIELD(SegmentHeader, major), FIELD(SegmentHeader, minor);
  FIELD(SegmentHeader, byte_order), FIELD(SegmentHeader, page_bytes), FIELD(SegmentHeader, layout_hash);
  FIELD(SegmentHeader, segment_bytes), FIELD(SegmentHeader, features), FIELD(SegmentHeader, pair_id);
  FIELD(SegmentHeader, reserved);
  STRUCT(Geometry);
  FIELD(Geometry, workers), FIELD(Geometry, slots), FIELD(Geometry, max_rows), FIELD(Geometry, field_count);
  FIELD(Geometry, ring_capacity), FIELD(Geometry, flags), FIELD(Geometry, config_bytes), FIELD(Geometry, slot_bytes);
  FIELD(Geometry, reserved_bytes), FIELD(Geometry, list_bytes), FIELD(Geometry, base_seed);
  FIELD(Geometry, retry_backoff_ns), FIELD(Geometry, retries), FIELD(Geometry, record_rows);
  FIELD(Geometry, data_device), FIELD(Geometry, data_inode), FIELD(Geometry, trace_records);
  FIELD(Geometry, world), FIELD(Geometry, rank), FIELD(Geometry, reserved);
  STRUCT(TrainerBlock);
  FIELD(TrainerBlock, sleeping), FIELD(TrainerBlock, abandon_before), FIELD(TrainerBlock, given_back),
      FIELD(TrainerBlock, engaged);
      FIELD(TrainerBlock, doubted);
  STRUCT(LoaderCounters);
  FIELD(LoaderCounters, batches), FIELD(LoaderCounters, samples), FIELD(LoaderCounters, bytes);
  FIELD(LoaderCounters, epochs), FIELD(LoaderCounters, wait_ns), FIELD(LoaderCounters, restarts);
  FIELD(LoaderCounters, redispatched), FIELD(LoaderCounters, quarantined), FIELD(LoaderCounters, invalid_results);
  FIELD(LoaderCounters, late_results), FIELD(LoaderCounters, retried), FIELD(LoaderCounters, substituted);
  FIELD(LoaderCounters, skipped), FIELD(LoaderCounters, hung), FIELD(LoaderCounters, slots_taken);
  FIELD(LoaderCounters, huge_bytes), FIELD(LoaderCounters, epoch), FIELD(LoaderCounters, epoch_first);
  FIELD(LoaderCounters, epoch_done), FIELD(LoaderCounters, epoch_batches), FIELD(LoaderCounters, in_epoch);
  FIELD(LoaderCounters, begun_ns), FIELD(LoaderCounters, yielded_ns), FIELD(LoaderCounters, waiting_since_ns);
  FIELD(LoaderCounters, start_wait_ns), FIELD(LoaderCounters, restarts_signal), FIELD(LoaderCounters, restarts_exit);
  FIELD(LoaderCounters, restarts_hung), FIELD(LoaderCounters, restarts_invalid);
  FIELD(LoaderCounters, restarts_unattached), FIELD(LoaderCounters, prefetch), FIELD(LoaderCounters, slots_held);
  STRUCT(TrainerRow);
  FIELD(TrainerRow, result_position), FIELD(TrainerRow, done_through), FIELD(TrainerRow, revoked_from),
      FIELD(TrainerRow, revoked_until), FIELD(TrainerRow, pid);
  FIELD(TrainerRow, state), FIELD(TrainerRow, generation), FIELD(TrainerRow, state_since_ns);
  STRUCT(FieldRecord);
  FIELD(FieldRecord, name), FIELD(FieldRecord, code), FIELD(FieldRecord, bits), FIELD(FieldRecord, lanes);
  FIELD(FieldRecord, ndim), FIELD(FieldRecord, shape);
  STRUCT(TaskMessage);
  FIELD(TaskMessage, id), FIELD(TaskMessage, epoch), FIELD(TaskMessage, batch), FIELD(TaskMessage, first_position);
  FIELD(TaskMessage, slot), FIELD(TaskMessage, attempt), FIELD(TaskMessage, rows), FIELD(TaskMessage, stride);
  FIELD(TaskMessage, flags), FIELD(TaskMessage, state_bytes);
}

void print_observed() {
  STRUCT(LoaderFacts);
  FIELD(LoaderFacts, created_ns), FIELD(LoaderFacts, pid), FIELD(LoaderFacts, start);
  FIELD(LoaderFacts, held);
  FIELD(LoaderFacts, task_timeout_ns), FIELD(LoaderFacts, version), FIELD(LoaderFacts, name);
  STRUCT(Histogram);
  FIELD(Histogram, sum_ns), FIELD(Histogram, buckets);
  STRUCT(TimingRow);
  FIELD(TimingRow, exposed), FIELD(TimingRow, start), FIELD(TimingRow, queue), FIELD(TimingRow, work);
  FIELD(TimingRow, ready), FIELD(TimingRow, hold);
  STRUCT(ErrorRow);
  FIELD(ErrorRow, changes), FIELD(ErrorRow, order), FIELD(ErrorRow, what), FIELD(ErrorRow, worker);
  FIELD(ErrorRow, batch), FIELD(ErrorRow, sample), FIELD(ErrorRow, count), FIELD(ErrorRow, first_ns);
  FIELD(ErrorRow, last_ns), FIELD(ErrorRow, key), FIELD(ErrorRow, text);
  STRUCT(BatchRecord);
  FIELD(BatchRecord, task), FIELD(BatchRecord, sequence), FIELD(BatchRecord, epoch), FIELD(BatchRecord, batch);
  FIELD(BatchRecord, maker), FIELD(BatchRecord, end), FIELD(BatchRecord, rows), FIELD(BatchRecord, bytes);
  FIELD(BatchRecord, dispatched_ns), FIELD(BatchRecord, begun_ns), FIELD(BatchRecord, committed_ns);
  FIELD(BatchRecord, swept_ns), FIELD(BatchRecord, yielded_ns), FIELD(BatchRecord, exposed_ns);
  FIELD(BatchRecord, released_ns), FIELD(BatchRecord, reserved);
  STRUCT(TraceHead);
  FIELD(TraceHead, written);
}

void print_data() {
  STRUCT(WorkerRow);
  FIELD(WorkerRow, sleeping), FIELD(WorkerRow, task_position), FIELD(WorkerRow, started_task);
  FIELD(WorkerRow, started_sample), FIELD(WorkerRow, started_ns), FIELD(WorkerRow, begun_through),
      FIELD(WorkerRow, passed_over), FIELD(WorkerRow, tasks), FIELD(WorkerRow, samples);
  FIELD(WorkerRow, bytes), FIELD(WorkerRow, errors), FIELD(WorkerRow, work_ns), FIELD(WorkerRow, wait_ns);
  FIELD(WorkerRow, thread);
  STRUCT(ResultMessage);
  FIELD(ResultMessage, id), FIELD(ResultMessage, slot), FIELD(ResultMessage, attempt), FIELD(ResultMessage, status);
  FIELD(ResultMessage, rows), FIELD(ResultMessage, begun_ns), FIELD(ResultMessage, committed_ns);
  STRUCT(TensorRecord);
  FIELD(TensorRecord, name), FIELD(TensorRecord, code), FIELD(TensorRecord, bits), FIELD(TensorRecord, lanes);
  FIELD(TensorRecord, ndim), FIELD(TensorRecord, shape), FIELD(TensorRecord, strides), FIELD(TensorRecord, offset);
  FIELD(TensorRecord, bytes), FIELD(TensorRecord, reserved);
  STRUCT(SlotHead);
  FIELD(SlotHead, task_id), FIELD(SlotHead, tensor_count), FIELD(SlotHead, transient), FIELD(SlotHead, failed_position);
  FIELD(SlotHead, detail_bytes), FIELD(SlotHead, shaped), FIELD(SlotHead, metadata_offset);
  FIELD(SlotHead, metadata_bytes), FIELD(SlotHead, state_offset), FIELD(SlotHead, state_bytes);
  FIELD(SlotHead, record_count), FIELD(SlotHead, has_state), FIELD(SlotHead, reserved);
  STRUCT(SlotText);
  FIELD(SlotText, text);
  STRUCT(SlotHeader);
  FIELD(SlotHeader, head), FIELD(SlotHeader, text), FIELD(SlotHeader, tensors);
  STRUCT(SampleRecord);
  FIELD(SampleRecord, position), FIELD(SampleRecord, outcome), FIELD(SampleRecord, code), FIELD(SampleRecord, retries);
  FIELD(SampleRecord, substitute), FIELD(SampleRecord, whole), FIELD(SampleRecord, reserved), FIELD(SampleRecord, text);
}

void print_hello() {
  STRUCT(greeting::Word);
  FIELD(greeting::Word, magic);
  STRUCT(greeting::Refused);
  FIELD(greeting::Refused, magic), FIELD(greeting::Refused, status), FIELD(greeting::Refused, os_errno);
  FIELD(greeting::Refused, found), FIELD(greeting::Refused, needed), FIELD(greeting::Refused, argument);
  FIELD(greeting::Refused, text);
  STRUCT(Welcome);
  FIELD(Welcome, magic), FIELD(Welcome, layout_hash), FIELD(Welcome, worker), FIELD(Welcome, generation);
  FIELD(Welcome, task_start), FIELD(Welcome, result_start), FIELD(Welcome, tied), FIELD(Welcome, wants_pidfd);
  FIELD(Welcome, epoch);
  STRUCT(Attached);
  FIELD(Attached, magic), FIELD(Attached, layout_hash);
  STRUCT(Ready);
  FIELD(Ready, magic), FIELD(Ready, status), FIELD(Ready, reserved), FIELD(Ready, text);
  STRUCT(Leaving);
  FIELD(Leaving, magic);
  DESCRIPTOR(welcome_control), DESCRIPTOR(welcome_data), DESCRIPTOR(welcome_worker_event);
  DESCRIPTOR(welcome_trainer_event), DESCRIPTOR(welcome_lifeline), DESCRIPTOR(welcome_trainer);
}

void print_ring() {
  STRUCT(RingGeometry);
  FIELD(RingGeometry, message_bytes), FIELD(RingGeometry, cell_bytes), FIELD(RingGeometry, capacity);
  FIELD(RingGeometry, lanes);
  STRUCT(ReceiverBlock);
  FIELD(ReceiverBlock, sleeping);
  STRUCT(ReceiverRow);
  FIELD(ReceiverRow, position);
  STRUCT(SenderRow);
  FIELD(SenderRow, sleeping);
  STRUCT(RingWelcome);
  FIELD(RingWelcome, magic), FIELD(RingWelcome, layout_hash), FIELD(RingWelcome, lane), FIELD(RingWelcome, abilities);
  FIELD(RingWelcome, start);
  STRUCT(RingAttached);
  FIELD(RingAttached, magic), FIELD(RingAttached, abilities), FIELD(RingAttached, reserved);
  DESCRIPTOR(ring_welcome_control), DESCRIPTOR(ring_welcome_data), DESCRIPTOR(ring_welcome_sender_event);
  DESCRIPTOR(ring_welcome_receiver_event), DESCRIPTOR(ring_welcome_receiver);
}

void print_share() {
  STRUCT(ShareGeometry);
  FIELD(ShareGeometry, slots), FIELD(ShareGeometry, capacity);
  STRUCT(FeederBlock);
  FIELD(FeederBlock, wants_returns);
  STRUCT(CatalogueHead);
  FIELD(CatalogueHead, epoch), FIELD(CatalogueHead, batch), FIELD(CatalogueHead, worker), FIELD(CatalogueHead, attempt);
  FIELD(CatalogueHead, rows), FIELD(CatalogueHead, skipped), FIELD(CatalogueHead, has_indices);
  FIELD(CatalogueHead, tensor_count), FIELD(CatalogueHead, metadata_offset), FIELD(CatalogueHead, metadata_bytes);
  FIELD(CatalogueHead, dispatched_ns), FIELD(CatalogueHead, begun_ns), FIELD(CatalogueHead, committed_ns);
  FIELD(CatalogueHead, swept_ns), FIELD(CatalogueHead, yielded_ns), FIELD(CatalogueHead, reserved);
  STRUCT(CatalogueEntry);
  FIELD(CatalogueEntry, head), FIELD(CatalogueEntry, padding), FIELD(CatalogueEntry, tensors);
  STRUCT(DeliveryBlock);
  FIELD(DeliveryBlock, revoked_through), FIELD(DeliveryBlock, short_after), FIELD(DeliveryBlock, short_returns);
  FIELD(DeliveryBlock, is_evicted);
  STRUCT(DeliveryMessage);
  FIELD(DeliveryMessage, round), FIELD(DeliveryMessage, kind), FIELD(DeliveryMessage, slot);
  FIELD(DeliveryMessage, epoch), FIELD(DeliveryMessage, batch), FIELD(DeliveryMessage, status);
  FIELD(DeliveryMessage, worker), FIELD(DeliveryMessage, sample), FIELD(DeliveryMessage, text);
  FIELD(DeliveryMessage, reserved);
  STRUCT(ConsumerRow);
  FIELD(ConsumerRow, sleeping), FIELD(ConsumerRow, position), FIELD(ConsumerRow, taken);
  FIELD(ConsumerRow, skip_before), FIELD(ConsumerRow, newest), FIELD(ConsumerRow, returns);
}

void print_share_hello() {
  STRUCT(sharing::Asking);
  FIELD(sharing::Asking, magic), FIELD(sharing::Asking, id), FIELD(sharing::Asking, lag);
  FIELD(sharing::Asking, evict_after_ns);
  STRUCT(sharing::Welcome);
  FIELD(sharing::Welcome, magic), FIELD(sharing::Welcome, layout_hash), FIELD(sharing::Welcome, id);
  FIELD(sharing::Welcome, share), FIELD(sharing::Welcome, wants_pidfd), FIELD(sharing::Welcome, lag);
  FIELD(sharing::Welcome, epoch), FIELD(sharing::Welcome, epoch_batches);
  STRUCT(sharing::Request);
  FIELD(sharing::Request, magic), FIELD(sharing::Request, round);
  STRUCT(sharing::Reply);
  FIELD(sharing::Reply, magic), FIELD(sharing::Reply, round), FIELD(sharing::Reply, bytes);
  FIELD(sharing::Reply, why);
  DESCRIPTOR(sharing::welcome_control), DESCRIPTOR(sharing::welcome_data), DESCRIPTOR(sharing::welcome_catalogue);
  DESCRIPTOR(sharing::welcome_delivery), DESCRIPTOR(sharing::welcome_returns);
  DESCRIPTOR(sharing::welcome_consumer_event), DESCRIPTOR(sharing::welcome_feeder_event);
  DESCRIPTOR(sharing::welcome_feeder);
}

void print_share_constants() {
  CONSTANT(SegmentKind::control), CONSTANT(SegmentKind::data), CONSTANT(SegmentKind::ring_control);
  CONSTANT(SegmentKind::ring_data), CONSTANT(SegmentKind::share_catalogue), CONSTANT(SegmentKind::share_delivery);
  CONSTANT(SegmentKind::share_returns);
  CONSTANT(DeliveryKind::begin), CONSTANT(DeliveryKind::batch), CONSTANT(DeliveryKind::failed);
  CONSTANT(DeliveryKind::end), CONSTANT(DeliveryKind::stopped);
  CONSTANT(share_layout_hash), CONSTANT(delivery_cell_bytes), CONSTANT(returned_unread);
  CONSTANT(sharing::asking_magic), CONSTANT(sharing::welcome_magic);
  CONSTANT(sharing::attached_magic), CONSTANT(sharing::request_magic);
  CONSTANT(sharing::reply_magic), CONSTANT(sharing::leaving_magic), CONSTANT(sharing::left_magic);
  CONSTANT(sharing::welcome_fds);
}

void print_arena() {
  STRUCT(ArenaGeometry);
  FIELD(ArenaGeometry, bytes), FIELD(ArenaGeometry, entries), FIELD(ArenaGeometry, buckets);
  FIELD(ArenaGeometry, members), FIELD(ArenaGeometry, segments), FIELD(ArenaGeometry, leases);
  FIELD(ArenaGeometry, layout);
  STRUCT(ArenaBlock);
  FIELD(ArenaBlock, sleeping), FIELD(ArenaBlock, changes), FIELD(ArenaBlock, wants_memory);
  FIELD(ArenaBlock, member_count), FIELD(ArenaBlock, entries), FIELD(ArenaBlock, used_bytes);
  FIELD(ArenaBlock, published), FIELD(ArenaBlock, evicted), FIELD(ArenaBlock, ended_hits);
  FIELD(ArenaBlock, ended_misses);
  STRUCT(ArenaMemberFacts);
  FIELD(ArenaMemberFacts, number), FIELD(ArenaMemberFacts, pid), FIELD(ArenaMemberFacts, file);
  FIELD(ArenaMemberFacts, state), FIELD(ArenaMemberFacts, waiting), FIELD(ArenaMemberFacts, granted_bytes);
  FIELD(ArenaMemberFacts, reserved);
  STRUCT(ArenaEntry);
  FIELD(ArenaEntry, state), FIELD(ArenaEntry, hash), FIELD(ArenaEntry, next);
  FIELD(ArenaEntry, segment), FIELD(ArenaEntry, offset), FIELD(ArenaEntry, bytes);
  FIELD(ArenaEntry, maker), FIELD(ArenaEntry, sequence), FIELD(ArenaEntry, published_ns);
  FIELD(ArenaEntry, key_bytes), FIELD(ArenaEntry, key);
  FIELD(ArenaEntry, reserved);
  STRUCT(ArenaAnswers);
  FIELD(ArenaAnswers, request_position), FIELD(ArenaAnswers, is_cut_off);
  STRUCT(ArenaRequest);
  FIELD(ArenaRequest, kind), FIELD(ArenaRequest, flags), FIELD(ArenaRequest, ticket);
  FIELD(ArenaRequest, offset), FIELD(ArenaRequest, bytes), FIELD(ArenaRequest, more);
  FIELD(ArenaRequest, key_bytes), FIELD(ArenaRequest, key);
  STRUCT(ArenaAnswer);
  FIELD(ArenaAnswer, kind), FIELD(ArenaAnswer, status), FIELD(ArenaAnswer, ticket);
  FIELD(ArenaAnswer, offset), FIELD(ArenaAnswer, bytes);
  STRUCT(ArenaDelivery);
  FIELD(ArenaDelivery, entry);
  STRUCT(ArenaMemberRow);
  FIELD(ArenaMemberRow, sleeping), FIELD(ArenaMemberRow, answer_position), FIELD(ArenaMemberRow, delivery_position);
  FIELD(ArenaMemberRow, leases_in_use), FIELD(ArenaMemberRow, hits), FIELD(ArenaMemberRow, misses);
  STRUCT(ArenaContents);
  FIELD(ArenaContents, magic), FIELD(ArenaContents, tensor_count), FIELD(ArenaContents, metadata_offset);
  FIELD(ArenaContents, metadata_bytes), FIELD(ArenaContents, reserved);
  STRUCT(ArenaWelcome);
  FIELD(ArenaWelcome, magic), FIELD(ArenaWelcome, layout_hash), FIELD(ArenaWelcome, number);
  FIELD(ArenaWelcome, wants_pidfd), FIELD(ArenaWelcome, segment), FIELD(ArenaWelcome, segment_generation);
  STRUCT(SegmentRequest);
  FIELD(SegmentRequest, magic), FIELD(SegmentRequest, segment), FIELD(SegmentRequest, generation);
  STRUCT(SegmentReply);
  FIELD(SegmentReply, magic), FIELD(SegmentReply, segment), FIELD(SegmentReply, generation);
  FIELD(SegmentReply, status), FIELD(SegmentReply, reserved);
  DESCRIPTOR(arena::welcome_control), DESCRIPTOR(arena::welcome_answers), DESCRIPTOR(arena::welcome_member);
  DESCRIPTOR(arena::welcome_payload), DESCRIPTOR(arena::welcome_member_event), DESCRIPTOR(arena::welcome_owner_event);
  DESCRIPTOR(arena::welcome_owner);
}

void print_arena_constants() {
  CONSTANT(SegmentKind::arena_control), CONSTANT(SegmentKind::arena_answers), CONSTANT(SegmentKind::arena_member);
  CONSTANT(arena_layout_hash), CONSTANT(arena_key_bytes), CONSTANT(arena_key_words), CONSTANT(arena_ring_capacity),
      CONSTANT(arena_entry_bits);
  CONSTANT(arena_request_cell), CONSTANT(arena_answer_cell), CONSTANT(arena_delivery_cell);
  CONSTANT(max_arena_members), CONSTANT(max_arena_entries), CONSTANT(max_arena_leases), CONSTANT(max_arena_bytes);
  CONSTANT(arena_contents_magic), CONSTANT(arena_pinned), CONSTANT(arena_make), CONSTANT(arena_ahead);
  CONSTANT(ArenaEntryState::free), CONSTANT(ArenaEntryState::live), CONSTANT(ArenaEntryState::retired);
  CONSTANT(ArenaRequestKind::publish), CONSTANT(ArenaRequestKind::give_back), CONSTANT(ArenaRequestKind::want_memory);
  CONSTANT(ArenaRequestKind::cancel_memory), CONSTANT(ArenaRequestKind::want_key);
  CONSTANT(ArenaRequestKind::cancel_key), CONSTANT(ArenaRequestKind::drop_key);
  CONSTANT(ArenaAnswerKind::memory), CONSTANT(ArenaAnswerKind::no_memory), CONSTANT(ArenaAnswerKind::ready);
  CONSTANT(ArenaAnswerKind::make);
  CONSTANT(arena::asking_magic), CONSTANT(arena::welcome_magic), CONSTANT(arena::attached_magic);
  CONSTANT(arena::segment_request_magic), CONSTANT(arena::segment_reply_magic), CONSTANT(arena::leaving_magic);
  CONSTANT(arena::left_magic), CONSTANT(arena::welcome_fds);
}

void print_constants() {
  CONSTANT(writer_distance), CONSTANT(cell_line), CONSTANT(payload_alignment), CONSTANT(tensor_alignment);
  CONSTANT(name_bytes), CONSTANT(text_bytes), CONSTANT(detail_bytes), CONSTANT(loader_cell_bytes);
  CONSTANT(histogram_buckets), CONSTANT(error_rows), CONSTANT(error_text_words);
  CONSTANT(FEEDLANE_MAX_NDIM), CONSTANT(FEEDLANE_MAX_TENSORS);
  CONSTANT(segment_magic), CONSTANT(format_major), CONSTANT(format_minor), CONSTANT(byte_order_mark),
      CONSTANT(layout_hash);
  CONSTANT(max_workers), CONSTANT(max_slots), CONSTANT(max_slot_bytes), CONSTANT(max_config_bytes), CONSTANT(max_rows);
  CONSTANT(max_trace_records), CONSTANT(max_world), CONSTANT(max_segment_bytes), CONSTANT(max_message_bytes),
      CONSTANT(max_ring_capacity), CONSTANT(max_ring_lanes);
  CONSTANT(welcome_magic), CONSTANT(attached_magic), CONSTANT(ready_magic), CONSTANT(leaving_magic),
      CONSTANT(welcome_fds);
  CONSTANT(greeting::accepted_magic), CONSTANT(greeting::refused_magic);
  CONSTANT(ring_asking_magic), CONSTANT(ring_welcome_magic), CONSTANT(ring_attached_magic),
      CONSTANT(ring_leaving_magic);
  CONSTANT(ring_passes_barriers), CONSTANT(ring_names_senders), CONSTANT(ring_welcome_fds);
}

unsigned long long number(std::uint64_t n) { return n; }

bool failed(const feedlane::Error& error) {
  std::fprintf(stderr, "%s\n", error.text);
  return false;
}

bool print_plan(const Geometry& g) {
  Plan p;
  feedlane::Error error;
  if (make_plan(g, p, error) != FEEDLANE_OK) return failed(error);
  std::printf("plan control trainer_block=%llu counters=%llu trainer_rows=%llu fields=%llu config=%llu",
              number(p.trainer_block), number(p.counters), number(p.trainer_rows), number(p.fields), number(p.config));
  std::printf(" task_rings=%llu index_lists=%llu facts=%llu timings=%llu errors=%llu", number(p.task_rings),
              number(p.index_lists), number(p.facts), number(p.timings), number(p.errors));
  std::printf(" slot_records=%llu trace_head=%llu trace=%llu end=%llu\n", number(p.slot_records), number(p.trace_head),
              number(p.trace), number(p.control_bytes));
  std::printf("plan data worker_rows=%llu result_lanes=%llu slot_headers=%llu records=%llu payload=%llu end=%llu\n",
              number(p.worker_rows), number(p.result_lanes), number(p.slot_headers), number(p.records),
              number(p.payload), number(p.data_bytes));
  return true;
}

bool print_ring_plan(std::uint32_t message_bytes, std::uint32_t capacity, std::uint32_t lanes) {
  RingPlan p;
  feedlane::Error error;
  if (make_ring_plan(message_bytes, capacity, lanes, p, error) != FEEDLANE_OK) return failed(error);
  std::printf("plan ring_control receiver_block=%llu receiver_rows=%llu end=%llu\n", number(p.receiver_block),
              number(p.receiver_rows), number(p.control_bytes));
  std::printf("plan ring_data sender_row=%llu cells=%llu end=%llu\n", number(p.sender_row), number(p.cells),
              number(p.data_bytes));
  return true;
}

bool print_share_plan(const ShareGeometry& g) {
  SharePlan p;
  feedlane::Error error;
  if (make_share_plan(g, p, error) != FEEDLANE_OK) return failed(error);
  std::printf("plan share_catalogue feeder=%llu entries=%llu end=%llu\n", number(p.feeder), number(p.entries),
              number(p.catalogue_bytes));
  std::printf("plan share_delivery block=%llu cells=%llu end=%llu\n", number(p.block), number(p.cells),
              number(p.delivery_bytes));
  std::printf("plan share_returns row=%llu returned=%llu end=%llu\n", number(p.row), number(p.returned),
              number(p.returns_bytes));
  return true;
}

bool print_arena_plan(const ArenaGeometry& g) {
  ArenaPlan p;
  feedlane::Error error;
  if (make_arena_plan(g, p, error) != FEEDLANE_OK) return failed(error);
  std::printf("plan arena_control block=%llu members=%llu buckets=%llu entries=%llu end=%llu\n", number(p.block),
              number(p.members), number(p.buckets), number(p.entries), number(p.control_bytes));
  std::printf("plan arena_answers answers=%llu answer_cells=%llu delivery_cells=%llu end=%llu\n", number(p.answers),
              number(p.answer_cells), number(p.delivery_cells), number(p.answers_bytes));
  std::printf("plan arena_member row=%llu leases=%llu uses=%llu request_cells=%llu end=%llu\n", number(p.row),
              number(p.leases), number(p.uses), number(p.request_cells), number(p.member_bytes));
  return true;
}

// A line of the input. False: it makes no plan.
bool print_requested(const std::string& what) {
  Geometry g{};
  RingGeometry r{};
  ShareGeometry s{};
  if (what == "ring")
    return std::scanf("%u %u %u", &r.message_bytes, &r.capacity, &r.lanes) == 3 &&
           print_ring_plan(r.message_bytes, r.capacity, r.lanes);
  ArenaGeometry a{65536, 0, 0, 1, 1, 0, 0};
  if (what == "arena") {
    if (std::scanf("%u %u %u %u", &a.entries, &a.buckets, &a.members, &a.leases) != 4) return false;
    a.segments = a.members;
    return print_arena_plan(a);
  }
  if (what == "share") return std::scanf("%u %u", &s.slots, &s.capacity) == 2 && print_share_plan(s);
  unsigned long long config = 0, slot = 0, list = 0;
  if (std::scanf("%u %u %u %u %u %llu %llu %llu %u %u", &g.workers, &g.slots, &g.max_rows, &g.field_count,
                 &g.ring_capacity, &config, &slot, &list, &g.record_rows, &g.trace_records) != 10)
    return false;
  g.config_bytes = config;
  g.slot_bytes = g.reserved_bytes = slot;
  g.list_bytes = list;
  g.world = 1;
  return print_plan(g);
}

}  // namespace

int main() {
  print_control();
  print_observed();
  print_data();
  print_hello();
  print_ring();
  print_share();
  print_share_hello();
  print_arena();
  print_constants();
  print_share_constants();
  print_arena_constants();
  for (char what[16]; std::scanf("%15s", what) == 1;)
    if (!print_requested(what)) return 1;
}
