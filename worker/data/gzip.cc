#include "worker/data/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace fusion::worker {

bool IsGzip(absl::string_view bytes) { return absl::StartsWith(bytes, "\x1f\x8b"); }

absl::StatusOr<std::string> Gunzip(absl::string_view bytes, int64_t limit) {
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  constexpr size_t kChunk = size_t{1} << 18;
  z_stream stream{};
  if (inflateInit2(&stream, kGzipOnly) != Z_OK) {
    return absl::ResourceExhaustedError("no memory to decompress");
  }
  const absl::Cleanup end = [&stream] { inflateEnd(&stream); };
  std::string contents;
  size_t given = 0;  // bytes that the stream has got
  while (true) {
    if (stream.avail_in == 0) {
      const size_t part = std::min<size_t>(bytes.size() - given, std::numeric_limits<uInt>::max());
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + given));  // zlib reads only
      stream.avail_in = static_cast<uInt>(part);
      given += part;
    }
    const size_t before = contents.size();
    contents.resize(before + kChunk);
    stream.next_out = reinterpret_cast<Bytef*>(contents.data() + before);
    stream.avail_out = static_cast<uInt>(kChunk);
    const int result = inflate(&stream, Z_NO_FLUSH);
    contents.resize(before + kChunk - stream.avail_out);
    const size_t offset = given - stream.avail_in;
    if (contents.size() > static_cast<size_t>(limit)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("decompresses to more than ", limit, " bytes; split the file"));
    }
    if (result == Z_STREAM_END) {
      if (offset == bytes.size()) return contents;
      if (inflateReset(&stream) != Z_OK || !IsGzip(bytes.substr(offset))) {
        return absl::InvalidArgumentError(absl::StrCat("gzip data ends at offset ", offset, " of ",
                                                       bytes.size(), ", and other data follows"));
      }
      continue;
    }
    if (result != Z_OK && result != Z_BUF_ERROR) {
      return absl::InvalidArgumentError(absl::StrCat("damaged gzip data at offset ", offset, ": ",
                                                     stream.msg != nullptr ? stream.msg : "unknown format"));
    }
    if (stream.avail_in == 0 && given == bytes.size() && stream.avail_out > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("gzip data is cut short after ", bytes.size(), " bytes"));
    }
  }
}

}  // namespace fusion::worker
