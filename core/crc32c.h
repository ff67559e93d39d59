// CRC32C (Castagnoli, reflected polynomial 0x82F63B78), by the CPU's instruction where there is one.
#ifndef EBB_CORE_CRC32C_H
#define EBB_CORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

// Checksum of data; to continue over several pieces pass the previous result as crc (first: 0).
uint32_t ebb_crc32c(uint32_t crc, const void *data, size_t len);

#endif
