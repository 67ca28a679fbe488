// The settings of NVIDIA's library that callers ask for. They steer its own threads, caches and kernel
// module, of which we have none: what is set can be got, and changes nothing. Thread-safe.
#pragma once

#include <cstddef>

#include "compat/cufile/abi.h"

namespace nacre::cufile {

CUfileDrvProps_t Properties();

CUfileError_t GetSize(int parameter, size_t* value);
CUfileError_t SetSize(int parameter, size_t value);
CUfileError_t GetSizeRange(int parameter, size_t* least, size_t* most);
CUfileError_t GetBool(int parameter, bool* value);
CUfileError_t SetBool(int parameter, bool value);
CUfileError_t GetString(int parameter, char* text, int room);
CUfileError_t SetString(int parameter, const char* text);

}  // namespace nacre::cufile
