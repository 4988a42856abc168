// A HIP runtime that launches nothing: it writes down what Triton's driver hands to it. The layout of a kernel's
// arguments is told by `describe`, for a launch passes their addresses alone.
#define _GNU_SOURCE  // dladdr
#define __HIP_PLATFORM_AMD__
#include <dlfcn.h>
#include <hip/hip_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define KERNELS 64
#define ARGUMENTS 128

static int count[KERNELS], sizes[KERNELS][ARGUMENTS], loaded;
static char written[1 << 20];
static size_t length;

void describe(uintptr_t kernel, int number, const int *bytes) {
  count[kernel] = number;
  memcpy(sizes[kernel], bytes, number * sizeof(int));
}

const char *taken(void) {
  length = 0;
  return written;
}

static hipError_t launched(const char *how, hipFunction_t f, unsigned x, unsigned y, unsigned z, unsigned threads,
                           unsigned shared, hipStream_t stream, void **params) {
  uintptr_t kernel = (uintptr_t)f;
  length += sprintf(written + length, "%s %lu %u,%u,%u %u %u %lu", how, kernel, x, y, z, threads, shared,
                    (uintptr_t)stream);
  for (int i = 0; i < count[kernel]; ++i) {
    uint64_t value = 0;
    memcpy(&value, params[i], sizes[kernel][i]);
    length += sprintf(written + length, " %lx", value);
  }
  length += sprintf(written + length, "\n");
  return hipSuccess;
}

hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b,
                                 unsigned c, unsigned shared, hipStream_t stream, void **params, void **extra) {
  return launched("plain", f, x, y, z, threads, shared, stream, params);
}

hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t f, unsigned x, unsigned y, unsigned z, unsigned threads,
                                            unsigned b, unsigned c, unsigned shared, hipStream_t stream,
                                            void **params) {
  return launched("cooperative", f, x, y, z, threads, shared, stream, params);
}

hipError_t hipModuleLoadDataEx(hipModule_t *module, const void *image, unsigned n, hipJitOption *o, void **v) {
  *module = (hipModule_t)(uintptr_t)(1 + loaded++ % (KERNELS - 1));
  return hipSuccess;
}

hipError_t hipModuleGetFunction(hipFunction_t *function, hipModule_t module, const char *name) {
  *function = (hipFunction_t)module;
  return hipSuccess;
}

hipError_t hipModuleUnload(hipModule_t module) { return hipSuccess; }

hipError_t hipFuncGetAttribute(int *value, hipFunction_attribute attribute, hipFunction_t f) {
  *value = attribute == HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return hipSuccess;
}

hipError_t hipGetDeviceProperties(hipDeviceProp_t *found, int device) {
  memset(found, 0, sizeof *found);
  strcpy(found->gcnArchName, "gfx942:sramecc+:xnack-");
  found->warpSize = 64;
  found->multiProcessorCount = 304;
  found->sharedMemPerBlock = 65536;
  found->maxThreadsPerMultiProcessor = 2048;
  found->cooperativeLaunch = 1;
  return hipSuccess;
}

hipError_t hipPointerGetAttribute(void *data, hipPointer_attribute attribute, hipDeviceptr_t pointer) {
  *(hipDeviceptr_t *)data = pointer;
  return hipSuccess;
}

hipError_t hipDriverGetVersion(int *version) {
  *version = 60443484;
  return hipSuccess;
}

const char *hipGetErrorString(hipError_t error) { return "an error"; }
hipError_t hipGetLastError(void) { return hipSuccess; }
hipError_t hipDrvLaunchKernelEx(const HIP_LAUNCH_CONFIG *c, hipFunction_t f, void **p, void **e) {
  return hipErrorNotSupported;
}

hipError_t hipGetProcAddress(const char *name, void **found, int version, uint64_t flags,
                             hipDriverProcAddressQueryResult *status) {
  if (!strcmp(name, "hipGetDeviceProperties")) {  // a macro: the function's own name says of which release it is
    *found = (void *)hipGetDeviceProperties;
    return hipSuccess;
  }
  Dl_info here;
  dladdr((void *)hipGetProcAddress, &here);
  *found = dlsym(dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD), name);
  return *found ? hipSuccess : hipErrorInvalidValue;
}
