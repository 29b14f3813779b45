// What torch keeps about a backend of ours. Must not know the engine.
#pragma once

#include <torch/headeronly/version.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace ferrocomm {

struct BackendOptions final : c10d::Backend::Options {
  explicit BackendOptions(std::string backend, std::chrono::milliseconds timeout)
      : c10d::Backend::Options(std::move(backend), timeout) {}

#if TORCH_VERSION_MINOR >= 14
  c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
    return c10::make_intrusive<BackendOptions>(*this);
  }
#endif

  // See BackendWrapper: torch reads these two as ProcessGroupGloo's own options.
  std::vector<std::shared_ptr<void>> devices;
  int threads{2};
};

}  // namespace ferrocomm
