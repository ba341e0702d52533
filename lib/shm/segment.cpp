// SPDX-License-Identifier: Apache-2.0
#include "shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>

#include "os/memfd.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace feedlane::shm {
namespace {

constexpr int data_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int control_seals = data_seals | F_SEAL_FUTURE_WRITE;

constexpr int seals_of(SegmentKind kind) { return kind == SegmentKind::control ? control_seals : data_seals; }
constexpr const char* name_of(SegmentKind kind) {
  return kind == SegmentKind::control ? "feedlane-control" : "feedlane-data";
}

std::uint32_t page_bytes() { return static_cast<std::uint32_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace

Status Segments::create_one(SegmentKind kind, std::uint64_t bytes, std::uint64_t pair_id, os::Fd& fd, Mapping& mapping,
                            Error& error) const {
  Status s = os::create_memfd(name_of(kind), bytes, fd, error);
  if (s == FEEDLANE_OK) s = os::reserve(fd.get(), 0, bytes, error);
  if (s == FEEDLANE_OK) s = mapping.map(fd.get(), bytes, Access::read_write, error);
  if (s == FEEDLANE_OK) s = os::add_seals(fd.get(), seals_of(kind), error);
  if (s != FEEDLANE_OK) return s;
  // A forked child must not hold a writable view of control, nor keep the memory alive. (Children of ours that work are
  // started by exec.) A core dump of the arena would delay the news of a crash.
  if (kind == SegmentKind::control) mapping.advise(MADV_DONTFORK);
  if (kind == SegmentKind::data) mapping.advise(MADV_DONTDUMP);
  SegmentHeader header{};
  header.magic = segment_magic;
  header.kind = static_cast<std::uint32_t>(kind);
  header.major = format_major;
  header.minor = format_minor;
  header.byte_order = byte_order_mark;
  header.page_bytes = page_bytes();
  header.layout_hash = layout_hash;
  header.segment_bytes = bytes;
  header.pair_id = pair_id;
  std::memcpy(mapping.data(), &header, sizeof header);
  return FEEDLANE_OK;
}

Status Segments::create(const Plan& plan, const os::SystemFiles& files, Error& error) {
  if (const Status s = os::check_memory({plan.control_bytes, plan.data_bytes}, files, error); s != FEEDLANE_OK)
    return s;
  std::uint64_t pair_id = 0;
  if (::getrandom(&pair_id, sizeof pair_id, 0) != sizeof pair_id) return error.os(errno, "getrandom");
  Status s = create_one(SegmentKind::control, plan.control_bytes, pair_id, control_fd_, control_, error);
  if (s == FEEDLANE_OK) s = create_one(SegmentKind::data, plan.data_bytes, pair_id, data_fd_, data_, error);
  if (s != FEEDLANE_OK) return s;
  plan_ = plan;
  std::memcpy(control_.data() + sizeof(SegmentHeader), &plan.geometry, sizeof plan.geometry);
  return FEEDLANE_OK;
}

Status Segments::attach_one(SegmentKind kind, int fd, Mapping& mapping, SegmentHeader& header, Error& error) {
  const char* name = name_of(kind);
  const int seals = os::get_seals(fd);
  if (seals < 0 || (seals & seals_of(kind)) != seals_of(kind))
    return error.refuse(FEEDLANE_E_CORRUPT, name, seals, seals_of(kind), "%s has seals %d, needs %d", name, seals,
                        seals_of(kind));
  std::uint64_t bytes = 0;
  if (const Status s = os::file_size(fd, bytes, error); s != FEEDLANE_OK) return s;
  constexpr std::uint64_t least = sizeof(SegmentHeader) + sizeof(Geometry);
  if (bytes < least || bytes > max_segment_bytes)
    return error.refuse(FEEDLANE_E_CORRUPT, name, static_cast<std::int64_t>(bytes), least, "%s has %llu bytes", name,
                        static_cast<unsigned long long>(bytes));
  const Access access = kind == SegmentKind::control ? Access::read_only : Access::read_write;
  if (const Status s = mapping.map(fd, bytes, access, error); s != FEEDLANE_OK) return s;

  std::memcpy(&header, mapping.data(), sizeof header);
  struct Expected {
    const char* what;
    std::uint64_t found, needed;
    Status refusal;
  };
  for (const Expected& e : {Expected{"magic", header.magic, segment_magic, FEEDLANE_E_CORRUPT},
                            {"kind", header.kind, static_cast<std::uint32_t>(kind), FEEDLANE_E_CORRUPT},
                            {"major", header.major, format_major, FEEDLANE_E_ABI},
                            {"byte_order", header.byte_order, byte_order_mark, FEEDLANE_E_ABI},
                            {"layout_hash", header.layout_hash, layout_hash, FEEDLANE_E_ABI},
                            {"features", header.features, 0, FEEDLANE_E_ABI},
                            {"page_bytes", header.page_bytes, page_bytes(), FEEDLANE_E_ABI},
                            {"segment_bytes", header.segment_bytes, bytes, FEEDLANE_E_CORRUPT}})
    if (e.found != e.needed)
      return error.refuse(e.refusal, e.what, static_cast<std::int64_t>(e.found), static_cast<std::int64_t>(e.needed),
                          "the header of %s has %s %#llx, needs %#llx", name, e.what,
                          static_cast<unsigned long long>(e.found), static_cast<unsigned long long>(e.needed));
  return FEEDLANE_OK;
}

Status Segments::attach(int control_fd, int data_fd, Error& error) {
  SegmentHeader control_header;
  SegmentHeader data_header;
  Status s = attach_one(SegmentKind::control, control_fd, control_, control_header, error);
  if (s == FEEDLANE_OK) s = attach_one(SegmentKind::data, data_fd, data_, data_header, error);
  if (s != FEEDLANE_OK) return s;
  if (control_header.pair_id != data_header.pair_id)
    return error.fail(FEEDLANE_E_CORRUPT, "the two segments belong to different loaders");
  Geometry geometry;
  std::memcpy(&geometry, control_.data() + sizeof(SegmentHeader), sizeof geometry);
  s = make_plan(geometry, plan_, error);
  if (s != FEEDLANE_OK) {
    error.code = FEEDLANE_E_CORRUPT;
    return error.code;
  }
  if (plan_.control_bytes != control_header.segment_bytes || plan_.data_bytes != data_header.segment_bytes)
    return error.refuse(FEEDLANE_E_CORRUPT, "segment_bytes", static_cast<std::int64_t>(data_header.segment_bytes),
                        static_cast<std::int64_t>(plan_.data_bytes),
                        "the segments have %llu and %llu bytes, their geometry asks for %llu and %llu",
                        static_cast<unsigned long long>(control_header.segment_bytes),
                        static_cast<unsigned long long>(data_header.segment_bytes),
                        static_cast<unsigned long long>(plan_.control_bytes),
                        static_cast<unsigned long long>(plan_.data_bytes));
  // The worker's own children must not write on after it.
  data_.advise(MADV_DONTFORK);
  data_.advise(MADV_DONTDUMP);
  return FEEDLANE_OK;
}

}  // namespace feedlane::shm
