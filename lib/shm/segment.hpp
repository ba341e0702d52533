// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/limits.hpp"
#include "os/memfd.hpp"
#include "shm/asan.hpp"
#include "shm/layout.hpp"
#include "shm/mapping.hpp"
#include "shm/plan.hpp"

namespace feedlane::shm {

// What the memfds of a loader are called; it shows in /proc.
constexpr const char* control_name = "feedlane-control";
constexpr const char* data_name = "feedlane-data";

// `first` bytes from the start, and then the first `bytes` of each of `count` stretches of `stride` bytes.
struct Parts {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t stride = 0;
  std::uint64_t bytes = 0;
  [[nodiscard]] std::uint64_t total() const { return first + count * bytes; }
};

// Of a huge page, if a data segment of so many bytes, all of them memory, shall be of them; else 0.
std::uint64_t huge_page_for(std::uint64_t data_bytes, const os::SystemFiles& files);

// Whether holes may be punched into data: by a worker that runs wild, and by the trainer to give memory back.
enum class Holes { allowed, forbidden };

// A data segment of several that belong to one control: that of a ring's lane. This side made it.
class DataSegment {
 public:
  // Gives the memory back and forgets the descriptor. What was mapped stays so, empty, until the next `create` or the end: who
  // still looks at it reads zeros.
  void discard();
  // Once it is with its peer.
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

// Two memfds that belong together, and their mappings in this process. Descriptors are kept by the side that made them,
// which hands them to its peers; a worker keeps that of data.
class SegmentPair {
 public:
  // Checks that there is memory, maps, reserves all of it, seals, writes the headers. After this the kernel lets nobody but
  // the holder of this mapping write to control, and no child forked meanwhile has it. `kind` is that of control; data's is
  // the next one. Of data, `reserved` says which parts are memory from the start; the rest is address space. Data without
  // any such address space is of huge pages where the system gives some. Where holes are forbidden, data can be written only
  // by this mapping and those that forked children inherit.
  Status create(SegmentKind kind, std::uint64_t control_bytes, std::uint64_t data_bytes, const Parts& reserved,
                const os::SystemFiles& files, Error& error, Holes holes = Holes::allowed);
  // The same without data, and then as many of these as are wanted, for peers that attach to control and one of them. All of
  // their bytes are memory. Whether there is any is for the caller to check before control is made.
  Status create_control(SegmentKind kind, std::uint64_t control_bytes, const os::SystemFiles& files, Error& error);
  Status create_data(std::uint64_t bytes, const os::SystemFiles& files, DataSegment& out, Error& error) const;
  // Both segments of a ring's sender. Takes nothing on trust: sizes, seals and headers are checked against each other. E_ABI,
  // E_CORRUPT. `access` is that to data; control can't be had but for reading.
  Status attach(SegmentKind kind, int control_fd, int data_fd, Access access, Error& error);
  // Control alone, and data by what control says of it. E_ABI, E_CORRUPT.
  Status attach_control(SegmentKind kind, int fd, Error& error);
  Status attach_data(int fd, const os::FileId& id, std::uint64_t bytes, Access access, Error& error);
  // The mapping of data that this process inherited from its parent, whose pair this is a copy of.
  Status take_data(SegmentPair& parent, Error& error);
  // Whether the sizes are what a plan asks for. E_CORRUPT.
  Status check_sizes(std::uint64_t control_bytes, std::uint64_t data_bytes, Error& error) const;
  Status check_control_size(std::uint64_t control_bytes, Error& error) const;
  void unmap();
  void keep_data_fd(os::Fd fd) { data_fd_ = std::move(fd); }

  [[nodiscard]] int control_fd() const { return control_fd_.get(); }
  [[nodiscard]] int data_fd() const { return data_fd_.get(); }
  // Whether data was filled with huge pages, if the system had any.
  [[nodiscard]] bool asked_for_huge_pages() const { return asked_for_huge_pages_; }
  // Objects there are implicit-lifetime types in mapped memory, zero at first.
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
  SegmentKind kind_ = SegmentKind::control;  // of the side that made it
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
  // Trainer: by the plan, whose geometry is written into control.
  Status create(const Plan& plan, const os::SystemFiles& files, Error& error, Holes holes = Holes::allowed);
  // Worker: computes the plan again from the geometry that it finds. E_ABI, E_CORRUPT.
  Status attach(int control_fd, int data_fd, Error& error) {
    return attach(control_fd, data_fd, Access::read_write, error);
  }
  // The same in a child forked by the trainer, whose segments `parent` are a copy of; its view of data becomes ours.
  Status attach_inherited(int control_fd, int data_fd, Segments& parent, Error& error);
  // Monitor: the same, but for reading only.
  Status watch(int control_fd, int data_fd, Error& error) {
    return attach(control_fd, data_fd, Access::read_only, error);
  }
  void unmap() {
    if (are_forbidden_)  // whatever lies there next is none of it
      for (std::uint32_t slot = 0; slot < plan_.geometry.slots; slot++) permit_payload(slot);
    are_forbidden_ = false;
    pair_.unmap();
  }
  // Worker: more of data may have to be reserved.
  void keep_data_fd(os::Fd fd) { pair_.keep_data_fd(std::move(fd)); }
  // Trainer: memory beyond the reserved part of a slot that nobody uses goes back to the system, and what is missing of that
  // part is there again.
  Status restore_slot(std::uint32_t slot, Error& error) const;
  [[nodiscard]] bool may_have_holes() const { return holes_ == Holes::allowed; }

  // Of a slot, or of all: see shm/asan.hpp.
  void forbid_payload(std::uint32_t slot) const { forbid(payload(slot), 0, plan_.slot_stride); }
  void permit_payload(std::uint32_t slot) const { permit(payload(slot), 0, plan_.slot_stride); }
  void forbid_payloads() {
    for (std::uint32_t slot = 0; slot < plan_.geometry.slots; slot++) forbid_payload(slot);
    are_forbidden_ = true;
  }

  [[nodiscard]] const Plan& plan() const { return plan_; }
  // Of data, in huge pages now. Looks through this process's mappings if it asked for some.
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
  bool are_forbidden_ = false;
  SegmentPair pair_;
};

}  // namespace feedlane::shm
