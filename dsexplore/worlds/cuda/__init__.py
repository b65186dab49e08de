"""A GPU that is not there: `stand_in.cuda_stand_in` lets ``cuda`` mean the CPU."""
