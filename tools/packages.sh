# packages.sh: need PACKAGE "why" ..., then install_needed. Sourced by the other scripts. Installs with apt what is
# missing, says what and why, and uses sudo only when not root.
missing=""
need() {
    if ! dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q "install ok installed"; then
        echo "missing: $1 ($2)" >&2
        missing="$missing $1"
    fi
}
install_needed() {
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "error: these packages are missing and there is no apt-get here: $missing. Install them by hand, then run this again" >&2
        return 1
    fi
    root=""
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || { echo "error: not root and no sudo: run as root: apt-get install$missing" >&2; return 1; }
        root=sudo
    fi
    echo "installing:$missing" >&2
    DEBIAN_FRONTEND=noninteractive $root apt-get install -y --no-install-recommends $missing >/dev/null 2>&1 && { missing=""; return 0; }
    $root apt-get update >/dev/null 2>&1
    if ! DEBIAN_FRONTEND=noninteractive $root apt-get install -y --no-install-recommends $missing >/dev/null; then
        echo "error: apt-get could not install:$missing" >&2
        return 1
    fi
    missing=""
}
