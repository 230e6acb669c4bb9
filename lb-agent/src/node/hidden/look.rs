//! Inspects the network namespaces of pods.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::sched::{CloneFlags, setns};

use super::device::Hidden;
use super::inside::hidden;
use super::routes::{PodRoute, route};
use crate::netlink::{connect, list, message, next};
use crate::node::view::{Link, LinkKind, NetnsView};
use crate::node::watch::read;

/// Directories in which container runtimes name the namespaces of pods: containerd and CRI-O, and Docker.
const DIRECTORIES: [&str; 2] = ["/run/netns", "/run/docker/netns"];
/// `RTM_GETLINK` and the size of `struct ifinfomsg`; `RTM_GETROUTE` and that of `struct rtmsg`; `RTM_GETNSID`, whose
/// `struct rtgenmsg` is padded.
const GET_LINK: u16 = 18;
const LINK: usize = 16;
const GET_ROUTE: u16 = 26;
const ROUTE: usize = 12;
const GET_NAMESPACE: u16 = 90;
/// Attribute of a request about a namespace, `NETNSA_FD`, and of the reply, `NETNSA_NSID`.
const FD: u16 = 3;
const NUMBER: u16 = 1;

/// Inspects every named namespace. Without permission, nothing is found. Blocks.
pub(in crate::node) fn find() -> Vec<Hidden> {
    let found = thread::Builder::new().name("namespaces".into()).spawn(|| {
        // setns(2) changes the namespace of this thread for good, so it is a thread of its own.
        let mut all = Vec::new();
        let Ok(own) = File::open("/proc/thread-self/ns/net") else { return all };
        // A namespace may have several names, and ours may have one too.
        let mut seen: BTreeSet<u64> = own.metadata().iter().map(MetadataExt::ino).collect();
        for directory in DIRECTORIES {
            for entry in fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok) {
                // A namespace that is gone, or that may not be entered, is skipped.
                all.extend(look_into(&entry.path(), &own, &mut seen).unwrap_or_default());
            }
        }
        all.sort();
        all
    });
    found.ok().and_then(|thread| thread.join().ok()).unwrap_or_default()
}

fn look_into(path: &Path, own: &File, seen: &mut BTreeSet<u64>) -> io::Result<Vec<Hidden>> {
    let there = File::open(path)?;
    // Several names can lead to one namespace.
    if !seen.insert(there.metadata()?.ino()) {
        return Ok(Vec::new());
    }
    setns(there.as_fd(), CloneFlags::CLONE_NEWNET)?;
    let socket = connect(NETLINK_ROUTE)?;
    let mut view = NetnsView::default();
    list(&socket, GET_LINK, &[0; LINK], |kind, body| {
        if let Some(RouteNetlinkMessage::NewLink(link)) = read(kind, body) {
            view.put_link(&link);
        }
    })?;
    let may_be_hidden =
        |link: &Link| link.is_card || matches!(link.kind, LinkKind::Over | LinkKind::Netkit);
    // Routes are read only where they matter: a namespace can have many.
    if !view.links.values().any(may_be_hidden) {
        return Ok(Vec::new());
    }
    let mut routes: Vec<PodRoute> = Vec::new();
    list(&socket, GET_ROUTE, &[0; ROUTE], |kind, body| {
        if let Some(RouteNetlinkMessage::NewRoute(message)) = read(kind, body) {
            routes.extend(route(&message));
        }
    })?;
    // Ids of namespaces are relative: the links there name ours by an id that only their namespace knows
    // (`IFLA_LINK_NETNSID`).
    let number = number_of(&socket, own)?;
    let namespace = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(hidden(&view, number, &namespace, &routes))
}

/// Returns the id of another namespace in the current one.
fn number_of(socket: &Socket, namespace: &impl AsFd) -> io::Result<i32> {
    let fd = namespace.as_fd().as_raw_fd().to_ne_bytes();
    let body = [&[0; 4], &8_u16.to_ne_bytes()[..], &FD.to_ne_bytes(), &fd].concat();
    socket.send(&message(GET_NAMESPACE, 0, &body), 0)?;
    let (datagram, _from) = socket.recv_from_full()?;
    let (_, body) = next(&mut datagram.as_slice()).ok_or(io::ErrorKind::UnexpectedEof)?;
    // The id is the first attribute of a reply; an error message has another type there.
    let kind = body.get(6..).and_then(|rest| rest.first_chunk().copied()).map(u16::from_ne_bytes);
    let number = body.get(8..).and_then(|rest| rest.first_chunk().copied());
    match (kind, number.map(i32::from_ne_bytes)) {
        (Some(NUMBER), Some(number)) => Ok(number),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}
