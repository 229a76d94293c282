"""The parts that all GEMM workloads share: their problems' operands, the library's GEMM."""
