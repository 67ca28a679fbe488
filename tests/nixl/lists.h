// The part of NIXL's library that makes lists of descriptors, so that the test of our plugin needs NIXL's
// headers only. Not for programs that link NIXL.
#pragma once

#include <nixl_descriptors.h>

inline nixlBasicDesc MakePlace(uintptr_t address, size_t length, uint64_t device) {
  nixlBasicDesc place;
  place.addr = address;
  place.len = length;
  place.devId = device;
  return place;
}

template <class T>
nixlDescList<T>::nixlDescList(const nixl_mem_t& kind, const int& size) : type(kind) {
  descs.resize(static_cast<size_t>(size));
}

template <class T>
void nixlDescList<T>::resize(const size_t& count) {
  descs.resize(count);
}

template <class T>
void nixlDescList<T>::addDesc(const T& desc) {
  descs.push_back(desc);
}

template <class T>
int nixlDescList<T>::getIndex(const nixlBasicDesc& query) const {
  for (size_t i = 0; i < descs.size(); ++i) {
    const nixlBasicDesc& one = descs[i];
    if (one.addr == query.addr && one.len == query.len && one.devId == query.devId)
      return static_cast<int>(i);
  }
  return NIXL_ERR_NOT_FOUND;
}
