// SPDX-License-Identifier: Apache-2.0
// References to batches, and streams' uses of them.
#include "lending/leases.hpp"

#include "lending/streams.hpp"
#include "pinned/pool.hpp"

namespace feedlane::lending {

Leases::Leases(Lender& lender, monitor::EventQueue& events)
    : lender_(lender), slots_(lender.slots()), events_(events) {}

Leases::~Leases() = default;

void Leases::use(Life& life) {
  life_ = &life;
  if (pool() != nullptr) streams_ = std::make_unique<RecordedStreams>(slots_.size());
}

// ---- with the batch's count of the handle ----

Status Leases::give_back(std::uint64_t token) {
  Life& life = *life_;
  // The batch's count of the handle may end here, but streams that must be asked still need the handle. So it is
  // counted once more during this call.
  const bool asks = streams_ != nullptr;
  if (asks) life.keep();
  tensors::SlotTable::Left left;
  const Status s = release(token, left);
  if (left.freed) life.let_go();
  else if (left.unreferenced && asks) streams_->ask(*this, token);
  if (asks) life.let_go();
  return s;
}

Status Leases::give_back_on(std::uint64_t token, void* stream, Error& error) {
  Status s = check_pool(error);
  if (s != FEEDLANE_OK) return s;
  // Deletes the StreamUse.
  const auto on_passed = [](void* cookie, std::int32_t status) {
    const std::unique_ptr<StreamUse> use(static_cast<StreamUse*>(cookie));
    use->end(stream_error(status));
  };
  auto use = std::make_unique<StreamUse>(*this, token, stream, on_passed);
  // The reference is kept while the stream is asked. So if that fails, the caller still holds the batch.
  if (s = begin_use(token, error); s != FEEDLANE_OK) return s;
  if (s = use->ask(error); s != FEEDLANE_OK) {
    use->end(Error());
    return s;
  }
  (void)use.release();  // on_passed's
  s = give_back(token);
  return s == FEEDLANE_OK ? s : error.fail(s, "another thread has already released the batch");
}

Status Leases::record_stream(std::uint64_t token, void* stream, Error& error) {
  Status s = check_pool(error);
  if (s != FEEDLANE_OK) return s;
  if (!pool()->backend().has_when_passed())
    return error.fail(FEEDLANE_E_UNSUPPORTED, "the pool's backend has no callback `when_passed`");
  Reference reference;
  s = reference.take(*this, token, error);
  return s == FEEDLANE_OK ? streams_->add(*this, token, stream, error) : s;
}

Status Leases::check_pool(Error& error) const {
  if (pool() != nullptr) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_STATE, "config.pinned", 0, 1, "the loader has no pool: set config.pinned");
}

Status Reference::take(Leases& leases, std::uint64_t token, Error& error) {
  const Status s = leases.retain(token);
  if (s != FEEDLANE_OK)
    return error.fail(s, "{}",
                      s == FEEDLANE_E_STALE ? "the token is invalid, or its batch was already released"
                                            : "the batch already has the maximum number of references");
  leases_ = &leases;
  token_ = token;
  return s;
}

// ---- the slot alone ----

const std::vector<feedlane_tensor>& Leases::tensors(std::uint64_t token) const {
  return lender_.tensors(tensors::SlotTable::slot_number(token));  // it is held, so there is one
}

Status Leases::find_tensor(std::uint64_t token, std::int32_t number, const feedlane_tensor*& out, Error& error) const {
  const std::vector<feedlane_tensor>& all = tensors(token);
  if (number < 0 || static_cast<std::size_t>(number) >= all.size())
    return error.refuse(FEEDLANE_E_ARGUMENT, "tensor", number, all.size(), "tensor is {}, but the batch has {} tensors",
                        number, all.size());
  out = &all[static_cast<std::size_t>(number)];
  return FEEDLANE_OK;
}

std::int32_t Leases::registered_device(const feedlane_tensor& tensor) const {
  pinned::Pool* const registered = pool();
  const bool is_registered = registered != nullptr && registered->covers(tensor.data, tensor.bytes);
  return is_registered ? registered->backend().dlpack_device() : 0;
}

Status Leases::begin_use(std::uint64_t token, Error& error) {
  const Status s = slots_.begin_use(token);
  if (s == FEEDLANE_OK) return s;
  return error.fail(s, "{}",
                    s == FEEDLANE_E_STALE ? "the token is invalid, or its batch was already released"
                                          : "the batch is already used by the maximum number of streams");
}

tensors::SlotTable::Left Leases::end_use(std::uint64_t token, const Error& stream) {
  if (stream.code != FEEDLANE_OK) events_.push(FEEDLANE_EVENT_DEVICE_FAILED, stream);
  const tensors::SlotTable::Left left = slots_.end_use(token);
  if (left.freed) lender_.on_freed(tensors::SlotTable::slot_number(token));
  lender_.on_end();  // whether it was the last or not: `next` may be about to say that the trainer holds everything
  return left;
}

}  // namespace feedlane::lending
