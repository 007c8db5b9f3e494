#!/bin/bash
# Boots systemd in a machine of its own, whose disk is this one's with all changes in memory. The caller gives it a network, and a cgroup
# that nothing else is in.
# boot.sh DIRECTORY CGROUP PROGRAMS CLONE; with INIT it is the first process of that machine.
set -eu

# The mounts of a machine, as systemd expects them of a container: it can change nothing of the kernel's.
init() {
  cd "$1"
  mount -t proc proc proc
  mount --bind proc/sys proc/sys
  mount -o remount,bind,ro proc/sys
  mount -t sysfs -o ro sysfs sys
  mount -t cgroup2 cgroup2 sys/fs/cgroup
  mount -t tmpfs -o mode=755 tmpfs dev
  for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
  done
  mkdir dev/shm dev/pts
  mount -t tmpfs tmpfs dev/shm
  mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
  ln -s pts/ptmx dev/ptmx
  ln -s /proc/self/fd dev/fd
  mount -t tmpfs -o mode=755 tmpfs run
  mount -t tmpfs tmpfs tmp
  mkdir run/host
  pivot_root . run/host
  umount --lazy /run/host
  exec env --ignore-environment PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=sonde \
    setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio,-syslog,-mknod --inh-caps=-all \
    /lib/systemd/systemd --system --unit=multi-user.target --show-status=no --log-target=console
}

if [ "$1" = INIT ]; then
  init "$2"
fi
if [ "${UNSHARED:-}" != yes ]; then
  echo $$ >"$2/cgroup.procs"
  UNSHARED=yes exec unshare --mount --cgroup --uts --ipc "$0" "$@"
fi

directory=$1 programs=$3 clone=$4
mount -t tmpfs -o mode=755 tmpfs "$directory"
mkdir "$directory/upper" "$directory/work" "$directory/root"
mount -t overlay -o "lowerdir=/,upperdir=$directory/upper,workdir=$directory/work" overlay "$directory/root" || exit 77
root=$directory/root
: >"$root/etc/fstab"
rm -rf "$root"/etc/systemd/system "$root"/etc/rc?.d # this machine's services
mkdir -p "$root/etc/systemd/system" "$root/var/log/journal" "$root/root/clone/bin"
echo 127.0.0.1 localhost control-plane.example >"$root/etc/hosts"
cp -r "$clone/." "$root/root/clone"
for program in "$programs"/*; do
  touch "$root/root/clone/bin/${program##*/}"
  mount --bind "$program" "$root/root/clone/bin/${program##*/}"
done
# The kernel ends a PID namespace with SIGHUP for a reboot, and with SIGINT for the end.
while
  status=0
  setpriv --pdeathsig=KILL unshare --pid --fork --kill-child --mount "$0" INIT "$root" || status=$?
  [ $status = 129 ]
do :; done
