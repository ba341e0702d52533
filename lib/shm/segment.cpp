// SPDX-License-Identifier: Apache-2.0
// Creates segments (memfd, seals, reservation, header), and attaches to them with all checks.
#include "shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "os/huge_pages.hpp"
#include "os/memfd.hpp"
#include "os/populate.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace feedlane::shm {
namespace {

constexpr int data_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int control_seals = data_seals | F_SEAL_FUTURE_WRITE;

struct Half {
  SegmentKind kind;
  const char* name;
  int seals;
  bool has_header;
  [[nodiscard]] bool is_control() const { return seals == control_seals; }
};

constexpr const char* name_of(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::control: return control_name;
    case SegmentKind::data: return data_name;
    case SegmentKind::ring_control: return ring_control_name;
    case SegmentKind::ring_data: return "feedlane-ring-data";
    case SegmentKind::share_catalogue: return "feedlane-catalogue";
    case SegmentKind::share_delivery: return "feedlane-delivery";
    case SegmentKind::share_returns: return "feedlane-returns";
    case SegmentKind::arena_control: return arena_control_name;
    case SegmentKind::arena_answers: return "feedlane-arena-answers";
    case SegmentKind::arena_member: return arena_member_name;
  }
  return "feedlane";
}
constexpr Half control_half(SegmentKind kind) { return {kind, name_of(kind), control_seals, true}; }
constexpr Half data_half(SegmentKind kind) {
  const auto data = static_cast<SegmentKind>(static_cast<std::uint32_t>(kind) + 1);
  return {data, name_of(data), data_seals, kind != SegmentKind::control};
}

std::uint32_t page_bytes() { return static_cast<std::uint32_t>(::sysconf(_SC_PAGESIZE)); }

// Only data without holes uses huge pages, because huge pages would fill the holes.
bool has_no_holes(const Parts& parts) { return parts.bytes == parts.stride; }

Status reserve_parts(int fd, const Parts& parts, Error& error) {
  if (has_no_holes(parts)) return os::reserve(fd, 0, parts.total(), error);
  Status s = os::reserve(fd, 0, parts.first, error);
  for (std::uint64_t i = 0; s == FEEDLANE_OK && i < parts.count; i++)
    s = os::reserve(fd, parts.first + i * parts.stride, parts.bytes, error);
  return s;
}

void write_header(const Half& half, std::uint64_t bytes, std::uint64_t pair_id, const Mapping& mapping) {
  SegmentHeader header{};
  header.magic = segment_magic;
  header.kind = static_cast<std::uint32_t>(half.kind);
  header.major = format_major;
  header.minor = format_minor;
  header.byte_order = byte_order_mark;
  header.page_bytes = page_bytes();
  header.layout_hash = layout_hash;
  header.segment_bytes = bytes;
  header.pair_id = pair_id;
  std::memcpy(mapping.data(), &header, sizeof header);
}

void populate_parts(const Mapping& mapping, const Parts& parts, const os::SystemFiles& files) {
  std::vector<os::Stretch> stretches;
  if (has_no_holes(parts)) {
    stretches.push_back({0, parts.total()});
  } else {
    stretches.reserve(parts.count + 1);
    stretches.push_back({0, parts.first});
    for (std::uint64_t i = 0; i < parts.count; i++) stretches.push_back({parts.first + i * parts.stride, parts.bytes});
  }
  os::populate(mapping.data(), stretches, page_bytes(), files);
}

// `terms` apply to data; for control they forbid holes.
Status create_half(const Half& half, std::uint64_t bytes, const Parts& reserved, const DataTerms& terms,
                   std::uint64_t pair_id, std::uint64_t huge_page, os::Fd& fd, Mapping& mapping,
                   const os::SystemFiles& files, Error& error) {
  const Children children = half.is_control() ? Children::none : Children::inherit;
  const int seals = half.seals | (terms.holes == Holes::forbidden ? F_SEAL_FUTURE_WRITE : 0);
  Status s = os::create_memfd(half.name, bytes, fd, error);
  if (s == FEEDLANE_OK) s = mapping.map(fd.get(), bytes, Access::read_write, children, error);
  if (s == FEEDLANE_OK && terms.nodes != nullptr) s = os::bind_memory(mapping.data(), bytes, *terms.nodes, error);
  if (s == FEEDLANE_OK && huge_page != 0) os::fill_with_huge_pages(mapping.data(), bytes, huge_page, files);
  if (s == FEEDLANE_OK && huge_page == 0 && terms.is_populated) populate_parts(mapping, reserved, files);
  if (s == FEEDLANE_OK) s = reserve_parts(fd.get(), reserved, error);
  if (s == FEEDLANE_OK) s = os::forbid_opening_for_writing(fd.get(), error);
  if (s == FEEDLANE_OK) s = os::add_seals(fd.get(), seals, error);
  if (s != FEEDLANE_OK) return s;
  if (!half.is_control()) mapping.advise(MADV_DONTDUMP);  // a core dump of the arena would delay the report of a crash
  if (half.has_header) write_header(half, bytes, pair_id, mapping);
  return FEEDLANE_OK;
}

Status check_header(const Half& half, const SegmentHeader& header, std::uint64_t bytes, Error& error) {
  struct Expected {
    const char* what;
    std::uint64_t found, needed;
    Status refusal;
  };
  for (const Expected& e : {Expected{"magic", header.magic, segment_magic, FEEDLANE_E_CORRUPT},
                            {"kind", header.kind, static_cast<std::uint32_t>(half.kind), FEEDLANE_E_CORRUPT},
                            {"major", header.major, format_major, FEEDLANE_E_ABI},
                            {"byte_order", header.byte_order, byte_order_mark, FEEDLANE_E_ABI},
                            {"layout_hash", header.layout_hash, layout_hash, FEEDLANE_E_ABI},
                            {"features", header.features, 0, FEEDLANE_E_ABI},
                            {"page_bytes", header.page_bytes, page_bytes(), FEEDLANE_E_ABI},
                            {"segment_bytes", header.segment_bytes, bytes, FEEDLANE_E_CORRUPT}})
    if (e.found != e.needed)
      return error.refuse(e.refusal, e.what, e.found, e.needed, "the header of {} has {} {} instead of {}", half.name,
                          e.what, Hex{e.found}, Hex{e.needed});
  return FEEDLANE_OK;
}

Status check_seals(const Half& half, int fd, Access access, Error& error) {
  const int seals = os::get_seals(fd);
  if (seals < 0 || (seals & half.seals) != half.seals)
    return error.refuse(FEEDLANE_E_CORRUPT, half.name, seals, half.seals, "{} has seals {} instead of {}", half.name,
                        seals, half.seals);
  constexpr int no_writing = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
  if (access == Access::read_write && (seals & no_writing) != 0)
    return error.refuse(FEEDLANE_E_CORRUPT, half.name, seals, half.seals, "{} has seals {}, which forbid writing",
                        half.name, seals);
  return FEEDLANE_OK;
}

Status attach_half(const Half& half, int fd, Access access, Mapping& mapping, std::uint64_t& pair_id, Error& error) {
  if (const Status s = check_seals(half, fd, access, error); s != FEEDLANE_OK) return s;
  std::uint64_t bytes = 0;
  if (const Status s = os::file_size(fd, bytes, error); s != FEEDLANE_OK) return s;
  constexpr std::uint64_t least = sizeof(SegmentHeader) + sizeof(Geometry);
  if (bytes < least || bytes > max_segment_bytes)
    return error.refuse(FEEDLANE_E_CORRUPT, half.name, bytes, least,
                        "{} has {} bytes, which is not a valid size of a segment", half.name, bytes);
  if (const Status s = mapping.map(fd, bytes, access, Children::none, error); s != FEEDLANE_OK) return s;
  SegmentHeader header;
  std::memcpy(&header, mapping.data(), sizeof header);
  pair_id = header.pair_id;
  return check_header(half, header, bytes, error);
}

}  // namespace

std::uint64_t huge_page_for(std::uint64_t data_bytes, const os::SystemFiles& files) {
  constexpr std::uint64_t least = std::uint64_t{8} << 20;  // smaller segments gain little
  if (data_bytes < least) return 0;
  const std::uint64_t page = os::huge_page_bytes(files);
  return page <= data_bytes ? page : 0;
}

// ---- any pair ----

Status SegmentPair::create(SegmentKind kind, std::uint64_t control_bytes, std::uint64_t data_bytes,
                           const Parts& reserved, const os::SystemFiles& files, Error& error, const DataTerms& terms) {
  if (const Status s = os::check_memory({control_bytes, data_bytes}, control_bytes + reserved.total(), files, error);
      s != FEEDLANE_OK)
    return s;
  Status s = FEEDLANE_OK;
  if (terms.nodes != nullptr) s = os::check_room_of_nodes(*terms.nodes, reserved.total(), files, error);
  if (s == FEEDLANE_OK) s = create_control(kind, control_bytes, files, error);
  if (s != FEEDLANE_OK) return s;
  const std::uint64_t huge_page = has_no_holes(reserved) ? huge_page_for(data_bytes, files) : 0;
  asked_for_huge_pages_ = huge_page != 0;
  return create_half(data_half(kind), data_bytes, reserved, terms, pair_id_, huge_page, data_fd_, data_, files, error);
}

Status SegmentPair::create_control(SegmentKind kind, std::uint64_t control_bytes, const os::SystemFiles& files,
                                   Error& error) {
  if (::getrandom(&pair_id_, sizeof pair_id_, 0) != sizeof pair_id_) return error.os(errno, "getrandom");
  kind_ = kind;
  return create_half(control_half(kind), control_bytes, {control_bytes}, {.holes = Holes::forbidden}, pair_id_, 0,
                     control_fd_, control_, files, error);
}

Status SegmentPair::create_data(std::uint64_t bytes, const os::SystemFiles& files, DataSegment& out,
                                Error& error) const {
  out.mapping_.unmap();
  const Status s = create_half(data_half(kind_), bytes, {bytes}, {}, pair_id_, huge_page_for(bytes, files), out.fd_,
                               out.mapping_, files, error);
  if (s != FEEDLANE_OK) out = DataSegment{};
  return s;
}

void DataSegment::discard() {
  mapping_.advise(MADV_REMOVE);
  fd_.reset();
}

Status SegmentPair::attach(SegmentKind kind, int control_fd, int data_fd, Access access, Error& error) {
  std::uint64_t control_id = 0;
  std::uint64_t data_id = 0;
  Status s = attach_half(control_half(kind), control_fd, Access::read_only, control_, control_id, error);
  if (s == FEEDLANE_OK) s = attach_half(data_half(kind), data_fd, access, data_, data_id, error);
  if (s != FEEDLANE_OK) return s;
  if (control_id != data_id)
    return error.refuse(FEEDLANE_E_CORRUPT, "pair_id", data_id, control_id,
                        "the control segment and the data segment do not belong together");
  data_.advise(MADV_DONTDUMP);
  return FEEDLANE_OK;
}

Status SegmentPair::attach_control(SegmentKind kind, int fd, Error& error) {
  std::uint64_t ignored = 0;
  return attach_half(control_half(kind), fd, Access::read_only, control_, ignored, error);
}

Status SegmentPair::attach_data(int fd, const os::FileId& id, std::uint64_t bytes, Access access, Error& error) {
  constexpr Half half = data_half(SegmentKind::control);
  if (const Status s = check_seals(half, fd, access, error); s != FEEDLANE_OK) return s;
  os::FileId found;
  if (const Status s = os::file_id(fd, found, error); s != FEEDLANE_OK) return s;
  if (found != id)
    return error.refuse(FEEDLANE_E_CORRUPT, "geometry.data_inode", found.inode, id.inode,
                        "{} is inode {}, but the control segment belongs to inode {}", half.name, found.inode,
                        id.inode);
  std::uint64_t size = 0;
  if (const Status s = os::file_size(fd, size, error); s != FEEDLANE_OK) return s;
  if (size != bytes)
    return error.refuse(FEEDLANE_E_CORRUPT, "segment_bytes", size, bytes,
                        "{} has {} bytes, but its geometry requires {}", half.name, size, bytes);
  const Status s = data_.map(fd, bytes, access, Children::none, error);
  if (s == FEEDLANE_OK) data_.advise(MADV_DONTDUMP);
  return s;
}

Status SegmentPair::take_data(SegmentPair& parent, Error& error) {
  data_.swap(parent.data_);
  return data_.keep_from_children(error);  // children must not write after this process has ended
}

Status SegmentPair::check_control_size(std::uint64_t bytes, Error& error) const {
  return check_sizes(bytes, data_.size(), error);
}

Status SegmentPair::check_sizes(std::uint64_t control_bytes, std::uint64_t data_bytes, Error& error) const {
  if (control_.size() == control_bytes && data_.size() == data_bytes) return FEEDLANE_OK;
  const bool is_control = control_.size() != control_bytes;
  const auto found = static_cast<std::int64_t>(is_control ? control_.size() : data_.size());
  const auto needed = static_cast<std::int64_t>(is_control ? control_bytes : data_bytes);
  return error.refuse(FEEDLANE_E_CORRUPT, "segment_bytes", found, needed,
                      "{} has {} bytes, but its geometry requires {}", is_control ? "control" : "data", found, needed);
}

void SegmentPair::unmap() {
  control_.unmap();
  data_.unmap();
}

// ---- a loader's pair ----

Status Segments::create(const Plan& plan, const os::SystemFiles& files, Error& error, const DataTerms& terms) {
  const Parts reserved{plan.payload, plan.geometry.slots, plan.slot_stride, plan.slot_reserved};
  os::FileId id;
  Status s = pair_.create(SegmentKind::control, plan.control_bytes, plan.data_bytes, reserved, files, error, terms);
  if (s == FEEDLANE_OK) s = os::file_id(pair_.data_fd(), id, error);
  if (s != FEEDLANE_OK) return s;
  holes_ = terms.holes;
  plan_ = plan;
  plan_.geometry.data_device = id.device;
  plan_.geometry.data_inode = id.inode;
  *pair_.control<Geometry>(sizeof(SegmentHeader)) = plan_.geometry;
  return FEEDLANE_OK;
}

bool Segments::has_pages_to_trim(std::uint32_t slot) const {
  const std::uint64_t start = plan_.payload_of(slot) + plan_.slot_reserved;
  const std::uint64_t end = plan_.payload_of(slot) + plan_.slot_stride;
  return start != end && os::first_data(data_fd(), start, end) < end;
}

Status Segments::trim_slot(std::uint32_t slot, Error& error) const {
  if (plan_.slot_reserved == plan_.slot_stride) return FEEDLANE_OK;
  const std::uint64_t start = plan_.payload_of(slot) + plan_.slot_reserved;
  const Status s = os::give_back(data_fd(), start, plan_.slot_stride - plan_.slot_reserved, error);
  // Release: pairs with the acquire load in Task::forget_given_back. One thread of the loader at a time writes it.
  trainer_block()->given_back.store(trainer_block()->given_back.load(std::memory_order_relaxed) + 1,
                                    std::memory_order_release);
  return s;
}

Status Segments::restore_slot(std::uint32_t slot, Error& error) const {
  const Status s = trim_slot(slot, error);
  return s == FEEDLANE_OK ? os::reserve(data_fd(), plan_.payload_of(slot), plan_.slot_reserved, error) : s;
}

std::uint64_t Segments::huge_bytes(const os::SystemFiles& files) const {
  return pair_.asked_for_huge_pages() ? os::huge_bytes(pair_.data<std::byte>(0), files) : 0;
}

Status Segments::attach_control(int fd, Error& error) {
  if (const Status s = pair_.attach_control(SegmentKind::control, fd, error); s != FEEDLANE_OK) return s;
  const Geometry geometry = *pair_.control<Geometry>(sizeof(SegmentHeader));
  if (make_plan(geometry, plan_, error) != FEEDLANE_OK) return error.code = FEEDLANE_E_CORRUPT;
  return pair_.check_control_size(plan_.control_bytes, error);
}

Status Segments::attach(int control_fd, int data_fd, Access access, Error& error) {
  const Status s = attach_control(control_fd, error);
  return s == FEEDLANE_OK ? pair_.attach_data(data_fd, data_id(), plan_.data_bytes, access, error) : s;
}

Status Segments::attach_inherited(int control_fd, int data_fd, Segments& parent, Error& error) {
  Status s = attach_control(control_fd, error);
  os::FileId id;
  if (s == FEEDLANE_OK) s = os::file_id(data_fd, id, error);
  if (s != FEEDLANE_OK) return s;
  if (id != data_id() || id != parent.data_id())
    return error.refuse(FEEDLANE_E_CORRUPT, "geometry.data_inode", id.inode, data_id().inode,
                        "these segments are not the parent process's");
  parent.are_poisoned_ = false;
  return pair_.take_data(parent.pair_, error);
}

}  // namespace feedlane::shm
