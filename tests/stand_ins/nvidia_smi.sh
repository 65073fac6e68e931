#!/bin/sh
# A stand-in for nvidia-smi: the queries trtbuild makes, for GPUs that the tests describe by environment variables.
gpus=${STAND_IN_GPUS:-1} sm=${STAND_IN_SM:-89} mib=${STAND_IN_GPU_MIB:-46068}
case "$1" in --query-gpu=*) fields=${1#--query-gpu=} ;; *) exit 2 ;; esac
[ "$2" = "--format=csv,noheader,nounits" ] || exit 2
[ "$gpus" -gt 0 ] || exit 6
index=0
while [ "$index" -lt "$gpus" ]; do
  line=
  for field in $(echo "$fields" | tr ',' ' '); do
    case "$field" in
      index) value=$index ;;
      name) value="NVIDIA L40S" ;;
      memory.total) value=$mib ;;
      memory.free) value=$((mib - 400)) ;;
      memory.used) value=400 ;;
      compute_cap) value=$((sm / 10)).$((sm % 10)) ;;
      driver_version) value=580.95 ;;
      *) echo "Field \"$field\" is not a valid field to query."; exit 2 ;;
    esac
    line="$line${line:+, }$value"
  done
  echo "$line"
  index=$((index + 1))
done
