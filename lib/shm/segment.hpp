// SPDX-License-Identifier: Apache-2.0
// Segments of loaders and standalone rings: pairs of memfds (control and data), and their mappings.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/limits.hpp"
#include "os/memfd.hpp"
#include "os/placement.hpp"
#include "shm/asan.hpp"
#include "shm/layout.hpp"
#include "shm/mapping.hpp"
#include "shm/plan.hpp"

namespace feedlane::shm {

// Names of a loader's memfds, visible in /proc.
constexpr const char* control_name = "feedlane-control";
constexpr const char* data_name = "feedlane-data";
// Name of a standalone ring's control memfd.
constexpr const char* ring_control_name = "feedlane-ring-control";
// Names of an arena's control memfd, and of its members'.
constexpr const char* arena_control_name = "feedlane-arena-control";
constexpr const char* arena_member_name = "feedlane-arena-member";

// The parts of a segment that are reserved at creation: its first `first` bytes, and the first `bytes` of each of
// `count` consecutive stretches of `stride` bytes.
struct Parts {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t stride = 0;
  std::uint64_t bytes = 0;
  [[nodiscard]] std::uint64_t total() const { return first + count * bytes; }
};

// Huge page size for a fully reserved data segment of `data_bytes`, or 0.
std::uint64_t huge_page_for(std::uint64_t data_bytes, const os::SystemFiles& files);

// Whether holes may be punched into data: by a faulty worker, and by the trainer to give memory back. If they are
// forbidden, the kernel also refuses every new writable mapping, by any process.
enum class Holes { allowed, forbidden };

// How the memory of data is allocated.
struct DataTerms {
  Holes holes = Holes::allowed;
  const os::NumberSet* nodes = nullptr;  // memory nodes for it; nullptr: the kernel decides
  bool is_populated = false;             // at once, by several threads, because it will be registered
};

// The data segment of one lane of a standalone ring, on the side that created it. A control segment may have several.
class DataSegment {
 public:
  // Gives the memory back and closes the descriptor. The mapping stays until the next create_data or the destructor,
  // and reads as zeros.
  void discard();
  // Call after the descriptor was sent to the peer.
  void close_fd() { fd_.reset(); }
  [[nodiscard]] int fd() const { return fd_.get(); }
  template <class T>
  [[nodiscard]] T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(mapping_.data() + offset);
  }

 private:
  friend class SegmentPair;
  os::Fd fd_;
  Mapping mapping_;
};

// A pair of memfds, and their mappings in this process. The side that created them keeps both descriptors and sends
// them to its peers. A worker keeps the descriptor of data.
class SegmentPair {
 public:
  // Checks that there is enough memory, maps, reserves, seals, and writes the headers. From here on the kernel allows
  // writes to control only through this mapping, and no child that was forked during the call has it. `kind` is the
  // kind of control; data has the next one. `reserved` describes the parts of data that are reserved at creation; the
  // rest is address space. Fully reserved data uses huge pages if the system has any. If holes are forbidden, data can
  // be written only through this mapping and through mappings that forked children inherit.
  Status create(SegmentKind kind, std::uint64_t control_bytes, std::uint64_t data_bytes, const Parts& reserved,
                const os::SystemFiles& files, Error& error, const DataTerms& terms = {});
  // Creates only the control segment. create_data then creates any number of data segments, each fully reserved. A peer attaches
  // to control and to one data segment. The caller checks that there is enough memory before it creates control.
  Status create_control(SegmentKind kind, std::uint64_t control_bytes, const os::SystemFiles& files, Error& error);
  Status create_data(std::uint64_t bytes, const os::SystemFiles& files, DataSegment& out, Error& error) const;
  // For a ring's sender and a shared loader's consumer: attaches to both segments. Checks sizes, seals and headers.
  // `access` applies to data; control is mapped for reading. E_ABI, E_CORRUPT.
  Status attach(SegmentKind kind, int control_fd, int data_fd, Access access, Error& error);
  // attach_control attaches to control. attach_data then attaches to data, which must have the id and size that control
  // names. E_ABI, E_CORRUPT.
  Status attach_control(SegmentKind kind, int fd, Error& error);
  Status attach_data(int fd, const os::FileId& id, std::uint64_t bytes, Access access, Error& error);
  // Takes over the mapping of data that this process inherited from its parent. `parent` is the inherited copy of the
  // parent's pair.
  Status take_data(SegmentPair& parent, Error& error);
  // E_CORRUPT if the sizes differ from the plan's.
  Status check_sizes(std::uint64_t control_bytes, std::uint64_t data_bytes, Error& error) const;
  Status check_control_size(std::uint64_t control_bytes, Error& error) const;
  void unmap();
  void keep_data_fd(os::Fd fd) { data_fd_ = std::move(fd); }
  // Call after the descriptors were sent to the peer. After this call nobody can get them from this process.
  void close_fds() {
    close_control_fd();
    data_fd_.reset();
  }
  void close_control_fd() { control_fd_.reset(); }

  [[nodiscard]] int control_fd() const { return control_fd_.get(); }
  [[nodiscard]] int data_fd() const { return data_fd_.get(); }
  // Whether huge pages were requested for data. The system may have had none.
  [[nodiscard]] bool asked_for_huge_pages() const { return asked_for_huge_pages_; }
  // The objects have implicit-lifetime types and lie in mapped memory, which is zero at first.
  template <class T>
  [[nodiscard]] T* control(std::uint64_t offset) const {
    return reinterpret_cast<T*>(control_.data() + offset);
  }
  template <class T>
  [[nodiscard]] T* data(std::uint64_t offset) const {
    return reinterpret_cast<T*>(data_.data() + offset);
  }

 private:
  os::Fd control_fd_;
  os::Fd data_fd_;
  Mapping control_;
  Mapping data_;
  SegmentKind kind_ = SegmentKind::control;  // set by the side that created it
  std::uint64_t pair_id_ = 0;
  bool asked_for_huge_pages_ = false;
};

// One side's view of a loader's two segments.
class Segments {
 public:
  Segments() = default;
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;
  ~Segments() { unmap(); }
  // Trainer: creates the segments according to the plan and writes the plan's geometry into control.
  Status create(const Plan& plan, const os::SystemFiles& files, Error& error, const DataTerms& terms = {});
  // Worker: computes the plan from the geometry in control. E_ABI, E_CORRUPT.
  Status attach(int control_fd, int data_fd, Error& error) {
    return attach(control_fd, data_fd, Access::read_write, error);
  }
  // Like attach, in a forked child of the trainer. `parent` is the inherited copy of the trainer's segments. Its
  // mapping of data moves to this object.
  Status attach_inherited(int control_fd, int data_fd, Segments& parent, Error& error);
  // Monitor: attaches for reading only.
  Status watch(int control_fd, int data_fd, Error& error) {
    return attach(control_fd, data_fd, Access::read_only, error);
  }
  void unmap() {
    if (are_poisoned_)  // later mappings at this address must not be poisoned
      for (std::uint32_t slot = 0; slot < plan_.geometry.slots; slot++) unpoison_payload(slot);
    are_poisoned_ = false;
    pair_.unmap();
  }
  // Worker: keeps the descriptor of data, to reserve more of data later.
  void keep_data_fd(os::Fd fd) { pair_.keep_data_fd(std::move(fd)); }
  // Trainer: whether a slot has written pages beyond its reserved part.
  [[nodiscard]] bool has_pages_to_trim(std::uint32_t slot) const;
  // Trainer: gives the memory beyond the reserved part of a free slot back to the system.
  Status trim_slot(std::uint32_t slot, Error& error) const;
  // Like trim_slot, and reserves missing pages of the reserved part.
  Status restore_slot(std::uint32_t slot, Error& error) const;
  [[nodiscard]] bool may_have_holes() const { return holes_ == Holes::allowed; }
  // Trainer: whether a process that is not a worker may have written to data.
  [[nodiscard]] bool is_under_suspicion() const {
    return may_have_holes() && os::may_be_opened_for_writing(pair_.data_fd());
  }

  // Poison or unpoison the payload of one slot or of all slots; see shm/asan.hpp.
  void poison_payload(std::uint32_t slot) const { poison(payload(slot), 0, plan_.slot_stride); }
  void unpoison_payload(std::uint32_t slot) const { unpoison(payload(slot), 0, plan_.slot_stride); }
  void poison_payloads() {
    for (std::uint32_t slot = 0; slot < plan_.geometry.slots; slot++) poison_payload(slot);
    are_poisoned_ = true;
  }

  [[nodiscard]] const Plan& plan() const { return plan_; }
  // Bytes of data in huge pages now. Reads this process's mappings from /proc if huge pages were requested.
  [[nodiscard]] std::uint64_t huge_bytes(const os::SystemFiles& files) const;
  [[nodiscard]] int control_fd() const { return pair_.control_fd(); }
  [[nodiscard]] int data_fd() const { return pair_.data_fd(); }

  [[nodiscard]] TrainerBlock* trainer_block() const { return pair_.control<TrainerBlock>(plan_.trainer_block); }
  [[nodiscard]] LoaderCounters* counters() const { return pair_.control<LoaderCounters>(plan_.counters); }
  [[nodiscard]] TrainerRow* trainer_row(std::uint32_t worker) const {
    return pair_.control<TrainerRow>(plan_.trainer_rows) + worker;
  }
  [[nodiscard]] FieldRecord* fields() const { return pair_.control<FieldRecord>(plan_.fields); }
  [[nodiscard]] std::byte* config() const { return pair_.control<std::byte>(plan_.config); }
  [[nodiscard]] std::int64_t* index_list(std::uint32_t slot) const {
    return pair_.control<std::int64_t>(plan_.index_lists + slot * plan_.index_list_bytes);
  }
  [[nodiscard]] std::byte* task_ring(std::uint32_t worker) const {
    return pair_.control<std::byte>(plan_.task_rings + worker * plan_.ring_bytes);
  }
  [[nodiscard]] LoaderFacts* facts() const { return pair_.control<LoaderFacts>(plan_.facts); }
  [[nodiscard]] TimingRow* timing_row(std::uint32_t row) const { return pair_.control<TimingRow>(plan_.timings) + row; }
  [[nodiscard]] ErrorRow* error_rows() const { return pair_.control<ErrorRow>(plan_.errors); }
  [[nodiscard]] BatchRecord* slot_record(std::uint32_t slot) const {
    return pair_.control<BatchRecord>(plan_.slot_records) + slot;
  }
  // Only if geometry.trace_records is not 0.
  [[nodiscard]] TraceHead* trace_head() const { return pair_.control<TraceHead>(plan_.trace_head); }
  [[nodiscard]] BatchRecord* trace() const { return pair_.control<BatchRecord>(plan_.trace); }
  [[nodiscard]] WorkerRow* worker_row(std::uint32_t worker) const {
    return pair_.data<WorkerRow>(plan_.worker_rows) + worker;
  }
  [[nodiscard]] std::byte* result_lane(std::uint32_t worker) const {
    return pair_.data<std::byte>(plan_.result_lanes + worker * plan_.ring_bytes);
  }
  [[nodiscard]] SlotHeader* slot_header(std::uint32_t slot) const {
    return pair_.data<SlotHeader>(plan_.slot_headers) + slot;
  }
  [[nodiscard]] SampleRecord* records(std::uint32_t slot) const {
    return pair_.data<SampleRecord>(plan_.records + slot * plan_.record_bytes);
  }
  [[nodiscard]] std::byte* payload(std::uint32_t slot) const { return pair_.data<std::byte>(plan_.payload_of(slot)); }

 private:
  Status attach(int control_fd, int data_fd, Access access, Error& error);
  Status attach_control(int fd, Error& error);
  [[nodiscard]] os::FileId data_id() const { return {plan_.geometry.data_device, plan_.geometry.data_inode}; }

  Plan plan_;
  Holes holes_ = Holes::allowed;
  bool are_poisoned_ = false;
  SegmentPair pair_;
};

}  // namespace feedlane::shm
