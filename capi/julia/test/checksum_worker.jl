# SPDX-License-Identifier: Apache-2.0
# A worker for examples/c/trainer.
using Feedlane
include("datasets.jl")
Feedlane.worker_main(Checksum())
