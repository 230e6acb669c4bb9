//! Interfaces of pods that no program of this host serves.
//!
//! They are macvlan, ipvlan and VLANs over one of its interfaces, network cards that were moved to a pod, and netkits
//! in mode l3. They are visible, or known as a pod's, only inside the namespaces of pods, and are only reported.

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

use super::{Link, LinkKind, View};
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

/// A device of a pod that no program of this host serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hidden {
    /// Its name in its own namespace.
    pub name: String,
    /// Name of the namespace.
    pub namespace: String,
    pub reason: Reason,
}

/// Why no program serves a device of a pod. Numbers are interface indices of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It is a macvlan, an ipvlan or a VLAN over this device.
    Over(u32),
    /// It is a network card that was moved to the pod.
    Card,
    /// It is a netkit in mode l3 whose other end is this device.
    NetkitL3(u32),
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
    let may_be_hidden =
        |link: &Link| link.is_card || matches!(link.kind, LinkKind::Over | LinkKind::Netkit);
    if !view.links.values().any(may_be_hidden) {
        return Ok(Vec::new());
    }
    let number = number_of(&socket, own)?;
    let namespace = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(hidden(&view, number, &namespace))
}

/// The hidden devices of a namespace that knows ours by a number. Beside a veth to us a card is a second network of
/// the pod, which asks Services through the veth.
fn hidden(view: &View, number: i32, namespace: &str) -> Vec<Hidden> {
    let is_ours = |link: &&Link| link.elsewhere == Some(number);
    let is_served = |link: &Link| !matches!(link.kind, LinkKind::Over | LinkKind::Netkit);
    let has_veth = view.links.values().filter(is_ours).any(is_served);
    let device = |link: &Link| {
        let reason = if link.kind == LinkKind::Over && is_ours(&link) {
            Reason::Over(link.peer?)
        } else if link.kind == LinkKind::Netkit && is_ours(&link) {
            Reason::NetkitL3(link.peer?)
        } else if link.is_card && link.is_up && !has_veth {
            Reason::Card
        } else {
            return None;
        };
        Some(Hidden { name: link.name.clone(), namespace: namespace.to_owned(), reason })
    };
    view.links.values().filter_map(device).collect()
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
        let Hidden { name, namespace, reason } = hidden;
        let name_of =
            |index: u32| view.links.get(&index).map_or("an interface that is gone", |it| &it.name);
        let kind = match *reason {
            Reason::Over(lower) => format!("a macvlan, ipvlan or VLAN over {}", name_of(lower)),
            Reason::Card => "a network card that was moved there".to_owned(),
            Reason::NetkitL3(end) => {
                return format!(
                    "interface {name} of pod network namespace {namespace} is a netkit in mode l3: the programs of \
                     this host do not serve its other end {}, so Services do not work there; use mode l2",
                    name_of(end)
                );
            }
        };
        format!(
            "interface {name} of pod network namespace {namespace} is {kind}: its packets bypass the programs of this \
             host, so Services do not work there; give the pod a veth or a netkit in mode l2"
        )
    };
    view.hidden.iter().map(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: i32 = 7;

    fn link(name: &str, kind: LinkKind, elsewhere: Option<i32>) -> Link {
        let is_card = kind == LinkKind::Other;
        let peer = elsewhere.map(|_| 1);
        Link { name: name.into(), kind, peer, elsewhere, is_card, is_up: true, ..Link::default() }
    }

    fn told(links: Vec<Link>) -> Vec<String> {
        let inside = View { links: (1..).zip(links).collect(), ..View::default() };
        let hidden = hidden(&inside, OURS, "blue");
        problems(&View { hidden, ..View::default() })
    }

    #[test]
    fn card_that_was_moved_to_a_pod_is_named() {
        let lo = link("lo", LinkKind::Loopback, None);
        let told = told(vec![lo, link("net1", LinkKind::Other, None)]);
        let [told] = told.as_slice() else { panic!("{told:?}") };
        let start =
            "interface net1 of pod network namespace blue is a network card that was moved there";
        assert!(told.starts_with(start), "{told}");
    }

    #[test]
    fn card_beside_a_veth_is_a_second_network() {
        let veth = link("eth0", LinkKind::Veth, Some(OURS));
        assert!(told(vec![veth, link("net1", LinkKind::Other, None)]).is_empty());
        // That veth leads to another namespace than ours.
        let veth = link("eth0", LinkKind::Veth, Some(OURS + 1));
        assert_eq!(told(vec![veth, link("net1", LinkKind::Other, None)]).len(), 1);
    }

    #[test]
    fn netkit_in_mode_l3_is_named_and_serves_no_card_beside_it() {
        let netkit = || link("eth0", LinkKind::Netkit, Some(OURS));
        let told = told(vec![netkit(), link("net1", LinkKind::Other, None)]);
        let [first, second] = told.as_slice() else { panic!("{told:?}") };
        assert!(first.contains("blue is a netkit in mode l3: "), "{first}");
        assert!(first.ends_with("; use mode l2"), "{first}");
        assert!(second.contains("is a network card"), "{second}");
        let inside = View { links: [(1, netkit())].into(), ..View::default() };
        assert!(hidden(&inside, OURS + 1, "blue").is_empty(), "its other end is not here");
    }

    #[test]
    fn only_devices_over_ours_are_named() {
        let over = |elsewhere| link("net1", LinkKind::Over, elsewhere);
        let ours = told(vec![over(Some(OURS))]);
        assert_eq!(ours.len(), 1);
        assert!(ours[0].contains("is a macvlan, ipvlan or VLAN over"), "{ours:?}");
        assert!(told(vec![over(Some(OURS + 1))]).is_empty());
        assert!(told(vec![over(None)]).is_empty());
    }
}
