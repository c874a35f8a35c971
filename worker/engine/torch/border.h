// Exceptions stop here: LibTorch throws, our interfaces return a Status.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/engine/torch/memory_account.h"

namespace fusion::worker::engine {

/// Status of the exception being handled, beginning with `what`: RESOURCE_EXHAUSTED for memory,
/// INVALID_ARGUMENT for what LibTorch refuses, else INTERNAL. Only inside a catch block.
inline absl::Status StatusOfException(const std::string& what) {
  try {
    throw;
  } catch (const MemoryLimitExceeded& error) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", error.what()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": the machine is out of memory"));
  } catch (const c10::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, ": ", error.what()));
  }
}

/// Calls `function`, which returns a Status or StatusOr, and turns exceptions into its Status.
template <class Function>
auto Guarded(const std::string& what, Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (...) {
    return StatusOfException(what);
  }
}

}  // namespace fusion::worker::engine
