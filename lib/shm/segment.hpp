// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/limits.hpp"
#include "shm/layout.hpp"
#include "shm/mapping.hpp"
#include "shm/plan.hpp"

namespace feedlane::shm {

// One side's view of a loader's two segments. Descriptors are kept only by the trainer, who hands them to workers.
class Segments {
 public:
  // Trainer: checks that there is memory, reserves all of it, maps, seals, writes headers and geometry. After this the
  // kernel lets nobody but the holder of this mapping write to control.
  Status create(const Plan& plan, const os::SystemFiles& files, Error& error);
  // Worker: takes nothing on trust: sizes, seals, headers and geometry are checked against each other. E_ABI, E_CORRUPT.
  Status attach(int control_fd, int data_fd, Error& error);

  void unmap() {
    control_.unmap();
    data_.unmap();
  }

  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] int control_fd() const { return control_fd_.get(); }
  [[nodiscard]] int data_fd() const { return data_fd_.get(); }

  [[nodiscard]] TrainerBlock* trainer_block() const { return at<TrainerBlock>(control_, plan_.trainer_block); }
  [[nodiscard]] TrainerRow* trainer_row(std::uint32_t worker) const {
    return at<TrainerRow>(control_, plan_.trainer_rows) + worker;
  }
  [[nodiscard]] FieldRecord* fields() const { return at<FieldRecord>(control_, plan_.fields); }
  [[nodiscard]] std::byte* config() const { return control_.data() + plan_.config; }
  [[nodiscard]] std::int64_t* index_list(std::uint32_t slot) const {
    return at<std::int64_t>(control_, plan_.index_lists + slot * plan_.index_list_bytes);
  }
  [[nodiscard]] std::byte* task_ring(std::uint32_t worker) const {
    return control_.data() + plan_.task_rings + worker * plan_.ring_bytes;
  }
  [[nodiscard]] WorkerRow* worker_row(std::uint32_t worker) const {
    return at<WorkerRow>(data_, plan_.worker_rows) + worker;
  }
  [[nodiscard]] std::byte* result_lane(std::uint32_t worker) const {
    return data_.data() + plan_.result_lanes + worker * plan_.ring_bytes;
  }
  [[nodiscard]] SlotHeader* slot_header(std::uint32_t slot) const {
    return at<SlotHeader>(data_, plan_.slot_headers) + slot;
  }
  [[nodiscard]] std::byte* payload(std::uint32_t slot) const { return data_.data() + plan_.payload_of(slot); }

 private:
  // The objects there are implicit-lifetime types in mapped memory, zero at first.
  template <class T>
  static T* at(const Mapping& mapping, std::uint64_t offset) {
    return reinterpret_cast<T*>(mapping.data() + offset);
  }
  Status create_one(SegmentKind kind, std::uint64_t bytes, std::uint64_t pair_id, os::Fd& fd, Mapping& mapping,
                    Error& error) const;
  static Status attach_one(SegmentKind kind, int fd, Mapping& mapping, SegmentHeader& header, Error& error);

  Plan plan_;
  os::Fd control_fd_;
  os::Fd data_fd_;
  Mapping control_;
  Mapping data_;
};

}  // namespace feedlane::shm
