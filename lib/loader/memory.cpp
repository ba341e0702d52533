// SPDX-License-Identifier: Apache-2.0
// Computes the size of a loader's segments from its configuration, and creates them.
#include "loader/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "feedlane.h"
#include "os/clock.hpp"

namespace feedlane::loader {
namespace {

// Space in addition to the declared fields, for metadata and tensors of other shapes. It is only address space until it
// is used.
constexpr std::uint64_t spare_bytes = std::uint64_t{64} << 10;
constexpr std::uint64_t shard_state_bytes = std::uint64_t{64} << 10;

// If the budget allows fewer slots than the window needs, fewer batches are in flight. Order and results don't change.
Status fit_budget(const Config& config, shm::Geometry& g, monitor::EventQueue& events, Error& error) {
  if (config.arena_bytes == 0) return FEEDLANE_OK;
  // Tensors without declared fields take memory only once they are written. A window that grows automatically counts
  // the full slot, because all of it may be written.
  const bool counts_all = config.chooses_prefetch && g.field_count == 0;
  const std::uint64_t each = shm::align_payload(counts_all ? g.slot_bytes : g.reserved_bytes);
  const std::uint64_t fit = config.arena_bytes / each;
  const std::uint64_t least = config.least_slots();
  const std::uint64_t found = std::min<std::uint64_t>(config.arena_bytes, INT64_MAX);
  if (fit < least)
    return error.refuse(FEEDLANE_E_LIMIT, "config.arena_bytes", found, least * each,
                        "config.arena_bytes is {}: must be at least {}, for config.held + 1 batches of {} bytes; full "
                        "prefetching takes {}",
                        found, least * each, each, g.slots * each);
  if (fit >= g.slots) return FEEDLANE_OK;
  const std::uint32_t wanted = g.slots;
  g.slots = static_cast<std::uint32_t>(fit);
  if (config.chooses_prefetch) return FEEDLANE_OK;
  Error warning;
  (void)warning.refuse(FEEDLANE_E_LIMIT, "config.arena_bytes", found, wanted * each,
                       "config.arena_bytes allows {} slots, but {} batches in flight and the held ones need {}: fewer "
                       "batches are prefetched",
                       fit, config.window(), wanted);
  events.push(FEEDLANE_EVENT_WARNING, warning);
  return FEEDLANE_OK;
}

}  // namespace

Status Memory::plan(const Config& config, std::uint64_t state_bytes, monitor::EventQueue& events, shm::Geometry& g,
                    Error& error) const {
  g.workers = config.workers;
  g.max_rows = static_cast<std::uint32_t>(config.batch_size);
  g.field_count = static_cast<std::uint32_t>(config.fields.all().size());
  g.flags = (config.unbatched ? shm::geometry_unbatched : 0U) | (config.iterable ? shm::geometry_iterable : 0U) |
            (config.drop_last ? shm::geometry_drop_last : 0U) | (config.skip_budget != 0 ? shm::geometry_skip : 0U) |
            (config.substitute ? shm::geometry_substitute : 0U);
  g.config_bytes = config.worker_config.size();
  // Memory comes in pages, so the first page is used completely. With small or no fields, a traceback needs it.
  const std::uint64_t fields = std::max<std::uint64_t>(config.fields.slot_bytes(), 1);
  const std::uint64_t room = config.slot_bytes != 0 ? config.slot_bytes : fields + spare_bytes;
  g.reserved_bytes = std::max(fields, std::min<std::uint64_t>(room, shm::payload_alignment));
  g.list_bytes = std::uint64_t{g.max_rows} * sizeof(std::int64_t);
  // A state saved with larger batches may be larger, because a shard then had more room.
  if (config.iterable) g.list_bytes = std::max({g.list_bytes, shard_state_bytes, state_bytes});
  // A slot also has room for the largest state that a shard may save.
  g.slot_bytes = config.slot_bytes != 0
                     ? config.slot_bytes
                     : fields + spare_bytes + (config.iterable ? tensors::align_tensor(g.list_bytes) : 0);
  g.base_seed = config.seed;
  g.retries = config.retries;
  g.retry_backoff_ns = static_cast<std::uint64_t>(config.retry_backoff_ns);
  g.record_rows = config.has_policies() ? g.max_rows : 0;
  g.trace_records = config.trace == 0 ? 0 : config.trace + 1;  // plus one, because the oldest may be partly overwritten
  g.world = config.world;
  g.rank = config.rank;
  g.slots = config.slots();
  if (g.slot_bytes > shm::max_slot_bytes)
    return error.refuse(FEEDLANE_E_LIMIT, "config.fields", g.slot_bytes, shm::max_slot_bytes,
                        "a batch takes {} bytes, including a slot's spare memory, but the largest slot has {}",
                        g.slot_bytes, shm::max_slot_bytes);
  if (const Status s = fit_budget(config, g, events, error); s != FEEDLANE_OK) return s;
  if (g.slots > shm::max_slots)
    return error.refuse(
        FEEDLANE_E_LIMIT, "config.prefetch_factor", g.slots, shm::max_slots,
        "{} workers with {} batches each in flight and the held batches need {} slots, but at most {} are allowed",
        config.workers, config.prefetch_factor, g.slots, shm::max_slots);
  g.ring_capacity = std::bit_ceil(g.slots);
  return FEEDLANE_OK;
}

Status Memory::create_segments(const Config& config, const shm::Geometry& g, const os::SystemFiles& files,
                               Error& error) {
  shm::Plan plan;
  const Status s = shm::make_plan(g, plan, error);
  const shm::DataTerms terms{.holes = config.forbids_holes() ? shm::Holes::forbidden : shm::Holes::allowed,
                             .nodes = config.memory_nodes.is_empty() ? nullptr : &config.memory_nodes,
                             .is_populated = config.is_pinned && config.staged == 0};
  return s == FEEDLANE_OK ? segments.create(plan, files, error, terms) : s;
}

void Memory::write_facts(const Config& config) {
  shm::LoaderFacts& facts = *segments.facts();
  facts.created_ns = static_cast<std::uint64_t>(os::now_ns());
  facts.pid = static_cast<std::uint64_t>(::getpid());
  facts.start = static_cast<std::uint32_t>(config.start);
  facts.held = config.held;
  facts.task_timeout_ns = config.has_task_timeout() ? config.task_timeout_ns : 0;
  (void)format_to(facts.version, "{}.{}.{}", FEEDLANE_VERSION_MAJOR, FEEDLANE_VERSION_MINOR, FEEDLANE_VERSION_PATCH);
  copy_text(facts.name, sizeof facts.name, config.name.c_str());
}

Status Memory::create(const Config& config, std::uint64_t state_bytes, const os::SystemFiles& files,
                      monitor::EventQueue& events, Error& error) {
  shm::Geometry g{};
  Status s = plan(config, state_bytes, events, g, error);
  if (s == FEEDLANE_OK) s = check_placement(config, files, error);
  if (s != FEEDLANE_OK) return s;
  // For huge pages, reserve slots completely if they have little address space beyond their reserved part. Not for
  // registered memory, because locked memory has a separate limit.
  bool is_created = false;
  if (!config.is_pinned && config.arena_bytes == 0 && shm::huge_page_for(g.slots * g.slot_bytes, files) != 0 &&
      g.slot_bytes - g.reserved_bytes <= g.reserved_bytes / 8) {
    shm::Geometry filled = g;
    filled.reserved_bytes = g.slot_bytes;
    is_created = create_segments(config, filled, files, error) == FEEDLANE_OK;
    if (!is_created) error = {};  // too large: reserve less
  }
  if (!is_created) s = create_segments(config, g, files, error);
  if (s != FEEDLANE_OK) return s;
  config.fields.write(segments.fields());
  if (g.config_bytes != 0) std::memcpy(segments.config(), config.worker_config.data(), g.config_bytes);
  counters().huge_bytes.store(segments.huge_bytes(files), std::memory_order_relaxed);  // no other reader yet
  write_facts(config);
  events.use(segments);
  slots.reset(g.slots, counters(), &segments);
  slot_memory.reset(segments);
  segments.poison_payloads();
  return FEEDLANE_OK;
}

void Memory::restore_free_slots() {
  if (!slot_memory.any_in_doubt()) return;
  Error ignored;
  for (std::uint32_t slot = 0; slot < slots.size(); slot++)
    if (slot_memory.wants_restoring(slot) && slots.is_free(slot)) (void)slot_memory.restore(slot, ignored);
}

}  // namespace feedlane::loader
