#!/bin/sh
# Process 1 of a user-mode-linux kernel that runs on this machine's own file system (hostfs, read-only).
# The kernel command line says what to run: uml_command="PROGRAM ARGUMENT..." and where: uml_folder=FOLDER.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
mount -t devpts devpts /dev/pts 2>/dev/null
mkdir -p /run/modules/lib
ln -s /usr/lib/uml/modules /run/modules/lib/modules
for module in veth sch_htb sch_netem sch_ingress cls_u32 act_mirred; do modprobe -d /run/modules "$module"; done
ip link set lo up
cd "$uml_folder" && $uml_command
echo "uml exit $?"
echo o >/proc/sysrq-trigger
sleep 5
