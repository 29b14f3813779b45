// A communicator of the ranks that are left. The others say nothing, so the store that the ranks
// met on is asked for another meeting. Must not know how they find out who is gone, nor how ranks
// join.

#include <algorithm>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm.hpp"

namespace ferrocomm {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

std::vector<int> without(const std::vector<int64_t>& excluded, int size, const Site& site) {
  const std::set<int64_t> gone(excluded.begin(), excluded.end());
  const std::string limits = "distinct ranks of 0 to " + std::to_string(size - 1);
  if (gone.size() != excluded.size()) {
    throw_invalid(site, {"a rank is excluded twice", "", limits, ""});
  }
  if (!gone.empty() && (*gone.begin() < 0 || *gone.rbegin() >= size)) {
    throw_invalid(site,
                  {"there is no such rank",
                   std::to_string(*gone.begin() < 0 ? *gone.begin() : *gone.rbegin()), limits, ""});
  }
  if (gone.count(site.rank) > 0) {
    throw_invalid(site, {"this rank is excluded", std::to_string(site.rank), "a rank that stays",
                         "excluded ranks do not call this"});
  }
  std::vector<int> left;
  for (int rank = 0; rank < size; ++rank) {
    if (gone.count(rank) == 0) left.push_back(rank);
  }
  return left;
}

// A key space for this meeting. Those who meet under one label are always the same ranks, and they
// all come before one of them can come again, so the count of arrivals tells meetings apart: a
// communicator of the same name may have shrunk on this store before.
StorePtr meeting(const StorePtr& store, const std::string& label, size_t members) {
  const int64_t arrivals = store->add(label + "/arrivals", 1);
  const int64_t round = (arrivals - 1) / static_cast<int64_t>(members);
  return c10::make_intrusive<c10d::PrefixStore>(label + "/" + std::to_string(round), store);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> TorchComm::store() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return store_;
}

bool TorchComm::can_shrink() const { return store().defined() && !is_reconfigurable(); }

std::shared_ptr<TorchComm> TorchComm::shrink(const std::vector<int64_t>& excluded, bool abort_first,
                                             const std::string& name,
                                             std::chrono::milliseconds timeout) {
  const Site where = site("shrink");
  const StorePtr store = this->store();
  if (!can_shrink()) {
    throw_status(FC_ERR_UNSUPPORTED,
                 "not supported: the ranks have no store to meet on" + to_string(where) +
                     (is_reconfigurable() ? "; reconfigure the communicator"
                                          : "; shrink before the communicator is finalized"));
  }
  const std::vector<int> left = without(excluded, size(), where);
  if (abort_first) abort();
  const std::string round = std::to_string(shrinks_++);

  CommSpec spec;
  spec.backend = backend_;
  spec.device = device_;
  spec.name = name.empty() ? name_ + ".shrunk" + round : name;
  spec.rank = static_cast<int>(std::find(left.begin(), left.end(), rank()) - left.begin());
  spec.size = static_cast<int>(left.size());
  spec.timeout = timeout;
  spec.hints = hints();
  const std::string label = "torchcomms/shrink/" + name_ + "/" + listed(left) + "/" + round;
  return create(spec, without_gil([&] { return meeting(store, label, left.size()); }));
}

}  // namespace ferrocomm
