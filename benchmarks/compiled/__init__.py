"""What compilers for GPUs and TPUs make of the package's programs."""
