#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "worker/data/csv.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto table = fusion::worker::ParseCsv({reinterpret_cast<const char*>(data), size});
  if (table.ok() && table->cells.size() != static_cast<size_t>(table->rows) * table->columns.size()) {
    std::abort();
  }
  return 0;
}
