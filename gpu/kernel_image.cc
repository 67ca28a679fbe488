#include "gpu/kernels.h"

#ifdef NACRE_KERNEL_IMAGE
asm(".section .rodata\n"
    ".balign 64\n"
    "nacre_kernel_image_begin:\n"
    ".incbin \"" NACRE_KERNEL_IMAGE
    "\"\n"
    "nacre_kernel_image_end:\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const char nacre_kernel_image_begin[];
extern "C" const char nacre_kernel_image_end[];
#endif

namespace nacre::gpu {

std::span<const char> KernelImage() {
#ifdef NACRE_KERNEL_IMAGE
  return {nacre_kernel_image_begin, nacre_kernel_image_end};
#else
  return {};
#endif
}

}  // namespace nacre::gpu
