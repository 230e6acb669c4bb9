//! Interfaces of pods whose packets bypass every program of this host: macvlan and ipvlan over one of its interfaces.
//! They are visible only inside the namespaces of pods, and are only reported.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::Path;
use std::thread;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::sched::{CloneFlags, setns};

use super::{LinkKind, View};
use crate::netlink::message;

/// Where namespaces have names: container runtimes put those of pods there.
const DIRECTORY: &str = "/run/netns";
/// `RTM_GETLINK` and the bytes of `struct ifinfomsg`; `RTM_GETNSID` and the bytes of `struct rtgenmsg`, filled up.
const GET_LINK: u16 = 18;
const LINK: usize = 16;
const GET_NAMESPACE: u16 = 90;
/// `NETNSA_FD` and `NETNSA_NSID`.
const FD: u16 = 3;
const NUMBER: u16 = 1;
const DUMP: u16 = 0x300;

/// A device of a pod that lies over one of this host's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hidden {
    /// Its name in its own namespace.
    pub name: String,
    /// Name of the namespace.
    pub namespace: String,
    /// Interface index of the host's device.
    pub lower: u32,
}

/// Looks into every named namespace. Where we may not, nothing is found. Blocks.
pub(super) fn find() -> Vec<Hidden> {
    let found = thread::Builder::new().name("namespaces".into()).spawn(|| {
        // This thread never comes back to our namespace.
        let mut all = Vec::new();
        let Ok(own) = File::open("/proc/thread-self/ns/net") else { return all };
        for entry in fs::read_dir(DIRECTORY).into_iter().flatten().filter_map(Result::ok) {
            // One that is gone meanwhile, or that we may not enter, has nothing to tell.
            all.extend(look_into(&entry.path(), &own).unwrap_or_default());
        }
        all.sort();
        all
    });
    found.ok().and_then(|thread| thread.join().ok()).unwrap_or_default()
}

fn look_into(path: &Path, own: &File) -> io::Result<Vec<Hidden>> {
    setns(File::open(path)?.as_fd(), CloneFlags::CLONE_NEWNET)?;
    let mut view = View::default();
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    let _own: SocketAddr = socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&message(GET_LINK, DUMP, &[0; LINK]), 0)?;
    while take(&mut view, &socket.recv_from_full()?.0) {}
    let over = view.links.values().filter(|link| link.kind == LinkKind::Over);
    let mut over = over.filter(|link| link.elsewhere.is_some()).peekable();
    if over.peek().is_none() {
        return Ok(Vec::new());
    }
    let number = number_of(&socket, own)?;
    let namespace = path.file_name().unwrap_or_default().to_string_lossy();
    let ours = over.filter(|link| link.elsewhere == Some(number)).filter_map(|link| {
        let (name, lower) = (link.name.clone(), link.peer?);
        Some(Hidden { name, namespace: namespace.to_string(), lower })
    });
    Ok(ours.collect())
}

/// Takes one datagram of a list. False when it was the last.
fn take(view: &mut View, datagram: &[u8]) -> bool {
    let mut rest = datagram;
    while let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) {
        let length = (message.header.length as usize).next_multiple_of(4);
        if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) = &message.payload {
            view.put_link(link);
        } else if matches!(message.payload, NetlinkPayload::Done(_) | NetlinkPayload::Error(_)) {
            return false;
        }
        match rest.get(length..) {
            Some(more) if !more.is_empty() && length > 0 => rest = more,
            _ => return true,
        }
    }
    !datagram.is_empty()
}

/// By which number the namespace that we are in knows another.
fn number_of(socket: &Socket, namespace: &impl AsFd) -> io::Result<i32> {
    let fd = namespace.as_fd().as_raw_fd().to_ne_bytes();
    let body = [&[0; 4], &8_u16.to_ne_bytes()[..], &FD.to_ne_bytes(), &fd].concat();
    socket.send(&message(GET_NAMESPACE, 0, &body), 0)?;
    let (datagram, _from) = socket.recv_from_full()?;
    let (_, body) =
        crate::netlink::next(&mut datagram.as_slice()).ok_or(io::ErrorKind::UnexpectedEof)?;
    // The first attribute of an answer; an error has none of that kind.
    let kind = body.get(6..).and_then(|rest| rest.first_chunk().copied()).map(u16::from_ne_bytes);
    let number = body.get(8..).and_then(|rest| rest.first_chunk().copied());
    match (kind, number.map(i32::from_ne_bytes)) {
        (Some(NUMBER), Some(number)) => Ok(number),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The problems that an operator is told of.
pub fn problems(view: &View) -> Vec<String> {
    let problem = |hidden: &Hidden| {
        let Hidden { name, namespace, lower } = hidden;
        let lower = view.links.get(lower).map_or("an interface that is gone", |link| &link.name);
        format!(
            "interface {name} of pod network namespace {namespace} is a macvlan or ipvlan over \
             {lower}: its packets bypass the programs of this host, so Services do not work there; give the pod a veth or a netkit in mode l2"
        )
    };
    view.hidden.iter().map(problem).collect()
}
