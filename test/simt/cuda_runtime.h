/* cuda_runtime.h: stands in for CUDA's header of that name; see simt.h. */
#include "simt.h"
