// Fixed-width encodings for keys (big-endian: their order is the numbers' order) and on-disk values
// (little-endian). A Reader never goes beyond its input: after a short read ok() is false and everything
// reads as zero.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/ids.h"

namespace nacre {

static_assert(std::endian::native == std::endian::little, "the on-disk formats are read without byte swaps");

template <typename T>
T ByteSwap(T value) {
  if constexpr (sizeof(T) == 1) return value;
  if constexpr (sizeof(T) == 2) return static_cast<T>(__builtin_bswap16(value));
  if constexpr (sizeof(T) == 4) return static_cast<T>(__builtin_bswap32(value));
  if constexpr (sizeof(T) == 8) return static_cast<T>(__builtin_bswap64(value));
}

template <typename T>
void PutLittle(std::string* out, T value) {
  static_assert(std::is_unsigned_v<T>);
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
void PutBig(std::string* out, T value) {
  PutLittle(out, ByteSwap(value));
}

// A length of type `Length`, then so many bytes, which must fit it.
template <typename Length>
void PutText(std::string* out, std::string_view text) {
  PutLittle(out, static_cast<Length>(text.size()));
  out->append(text);
}

inline void PutFid(std::string* out, const Fid& fid) {
  PutBig(out, fid.sequence);
  PutBig(out, fid.object);
  PutBig(out, fid.version);
}

inline void PutObjectId(std::string* out, const ObjectId& id) {
  PutBig(out, id.sequence);
  PutBig(out, id.stripe);
}

class ByteReader {
 public:
  explicit ByteReader(std::string_view data) : data_(data) {}

  bool ok() const { return ok_; }
  bool empty() const { return data_.empty(); }
  std::string_view rest() const { return data_; }

  template <typename T>
  T Little() {
    T value = 0;
    std::string_view bytes = Take(sizeof(T));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  template <typename T>
  T Big() {
    return ByteSwap(Little<T>());
  }

  template <typename Length>
  std::string_view Text() {
    return Take(Little<Length>());
  }

  Fid ReadFid() {
    Fid fid;
    fid.sequence = Big<uint64_t>();
    fid.object = Big<uint32_t>();
    fid.version = Big<uint32_t>();
    return fid;
  }

  ObjectId ReadObjectId() {
    ObjectId id;
    id.sequence = Big<uint64_t>();
    id.stripe = Big<uint32_t>();
    return id;
  }

  std::string_view Take(size_t n) {
    if (!ok_ || data_.size() < n) {
      ok_ = false;
      data_ = {};
      return {};
    }
    std::string_view taken = data_.substr(0, n);
    data_.remove_prefix(n);
    return taken;
  }

 private:
  std::string_view data_;
  bool ok_ = true;
};

}  // namespace nacre
