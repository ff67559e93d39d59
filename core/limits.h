// Every bound of the system in one place. Each one is checked before memory is taken for what it bounds.
#ifndef EBB_CORE_LIMITS_H
#define EBB_CORE_LIMITS_H

#define EBB_PROTOCOL 1                     // envelope protocol version
#define EBB_CONTROL_BYTES_MAX (64 * 1024)  // a control message (envelope frame)
#define EBB_CONTROL_HEAP_MAX (1024 * 1024) // heap one unpacked control message may take
#define EBB_FRAME_BYTES_MAX (4 * 1024 * 1024)
#define EBB_MANIFEST_BYTES_MAX EBB_FRAME_BYTES_MAX
#define EBB_PARTS_MAX 4096                 // payload parts of one message
#define EBB_MESSAGE_BYTES_MAX (1ULL << 30) // payload bytes of one message
#define EBB_TENSORS_MAX 16384
#define EBB_TENSOR_NDIM_MAX 4
#define EBB_NAME_MAX 128 // tensor, job and worker names, with the final NUL
#define EBB_ENDPOINT_MAX 256
#define EBB_SHARDS_MAX 1024
#define EBB_WORKERS_MAX 16384
#define EBB_CHUNKS_MAX (EBB_SHARDS_MAX * EBB_PARTS_MAX) // of one model: a shard's all fit one message
#define EBB_CHUNK_ELEMS_DEFAULT (256u * 1024u)
#define EBB_CHUNK_ELEMS_MAX (1024u * 1024u) // a float32 chunk fits one frame

#endif
