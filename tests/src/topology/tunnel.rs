//! A tunnel between two nodes, as `WireGuard` or ipip create it: pods of the other node are behind `tun0`, an interface
//! without a link-layer header.
//!
//! A thread of the test carries packets from one end to the other, like a tunnel program in user space: without an
//! outer header, and with the checksums and segmentation that the sender left undone. On a kernel with other kinds of
//! tunnel, the environment variable `LB_TUNNEL` selects one: `wireguard`, `gre`, `ip6tnl`, or `ipip` as Calico uses it,
//! with `sit` for IPv6.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe;

use super::address;
use super::node::Node;
use crate::netns::Netns;

/// The name of the interface at both ends.
const DEVICE: &str = "tun0";
/// The name of a second interface for IPv6, for kinds of tunnel that carry one family.
const DEVICE6: &str = "tun6";
/// The MTU of a `WireGuard` tunnel over Ethernet.
const MTU: u16 = 1_420;
/// The largest packet, with the virtio header that describes its pending checksum and segmentation.
const LARGEST: usize = 65_550;
/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6`.
const UNDONE: libc::c_ulong = 1 | 2 | 4;

/// A tunnel or cable, which carries packets until it is dropped.
#[derive(Debug)]
pub struct Tunnel {
    // Dropping it ends the thread.
    end: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Tunnel {
    /// Connects two nodes by a tunnel.
    pub(crate) fn between(nodes: &[Node]) -> Result<Self> {
        let [one, other] = nodes else { bail!("a tunnel has two ends, not {}", nodes.len()) };
        let tunnel = if let Ok(kind) = std::env::var("LB_TUNNEL") {
            kernel(&kind, one, other)?;
            Self { end: None, thread: None }
        } else {
            let [one, other] = [one, other].map(|it| open(it.netns(), DEVICE, libc::IFF_TUN));
            Self::carrying([one?, other?])?
        };
        for (node, peer) in [(one, other), (other, one)] {
            address(node, peer)?;
        }
        Ok(tunnel)
    }

    /// Connects two namespaces by a tap interface of this name in each, as a virtual machine is connected to its host.
    pub fn cable(ends: [(&Netns, &str); 2]) -> Result<Self> {
        let [one, other] = ends.map(|(netns, device)| open(netns, device, libc::IFF_TAP));
        Self::carrying([one?, other?])
    }

    fn carrying(ends: [File; 2]) -> Result<Self> {
        let (begin, last) = pipe()?;
        Ok(Self { end: Some(last), thread: Some(thread::spawn(move || carry(&ends, &begin))) })
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        drop(self.end.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Gives one end its addresses, and routes to the pods at the other end. A tunnel with many peers finds the peer by its
/// route alone.
fn address(node: &Node, peer: &Node) -> Result<()> {
    let [inside, other] = [address::overlay(node.number())?, address::overlay(peer.number())?];
    let has_many = node.netns().tool("ip", &["link", "show", DEVICE])?.contains("link/ipip");
    let (prefix, device6) = if has_many { (32, DEVICE6) } else { (24, DEVICE) };
    node.netns().ip(&format!(
        "address add {v4}/{prefix} dev {DEVICE}
         address add {v6}/64 dev {device6} nodad
         link set {DEVICE} mtu {MTU} up
         link set {device6} mtu {MTU} up",
        v4 = inside.v4,
        v6 = inside.v6
    ))?;
    let [pods4, pods6] = peer.pod_ranges();
    let mut via = other.v4.to_string();
    if has_many {
        via = format!("{} dev {DEVICE} onlink", peer.addresses().v4);
        node.netns().ip(&format!("route add {}/32 via {via}", other.v4))?;
    }
    node.netns().ip(&format!(
        "route add {pods4} via {via}
         route add {pods6} via {}",
        other.v6
    ))
}

/// Creates both ends as tunnel interfaces of the kernel.
fn kernel(kind: &str, one: &Node, other: &Node) -> Result<()> {
    let keys = [one, other].map(|node| key(kind, node));
    let [own, their] = keys;
    let (own, their) = (own?, their?);
    for ((node, peer), (own, their)) in
        [((one, other), (&own, &their)), ((other, one), (&their, &own))]
    {
        let (local, remote) = (node.addresses(), peer.addresses());
        let lines = match kind {
            "ipip" => format!(
                "link add {DEVICE} type ipip local {local}
                 link add {DEVICE6} type sit local {local} remote {remote}",
                local = local.v4,
                remote = remote.v4
            ),
            "ip6tnl" => format!(
                "link add {DEVICE} type ip6tnl mode any local {} remote {}",
                local.v6, remote.v6
            ),
            "gre" => format!("link add {DEVICE} type gre local {} remote {}", local.v4, remote.v4),
            "wireguard" => format!("link add {DEVICE} type wireguard"),
            _ => bail!("LB_TUNNEL={kind}"),
        };
        node.netns().ip(&lines).with_context(|| format!("{kind} in {}", node.name()))?;
        if kind == "wireguard" {
            let public = node.netns().tool_fed("wg", &["pubkey"], their)?;
            let config = format!(
                "[Interface]\nPrivateKey={own}\nListenPort=51820\n[Peer]\nPublicKey={}\n\
                 AllowedIPs=0.0.0.0/0,::/0\nEndpoint={}:51820\n",
                public.trim(),
                remote.v4
            );
            drop(node.netns().tool_fed("wg", &["setconf", DEVICE, "/dev/stdin"], &config)?);
        }
    }
    Ok(())
}

/// Creates a key, for the kinds of tunnel that need one.
fn key(kind: &str, node: &Node) -> Result<String> {
    let has_key = kind == "wireguard";
    let key = if has_key { node.netns().tool("wg", &["genkey"])? } else { String::new() };
    Ok(key.trim().to_owned())
}

/// Creates an interface: `IFF_TUN` or `IFF_TAP`.
fn open(netns: &Netns, device: &str, kind: libc::c_int) -> Result<File> {
    let open = || -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = file.open("/dev/net/tun")?;
        // SAFETY: all zeroes is a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from.cast_signed();
        }
        let flags = kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: the request names an interface and outlives the call.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if made != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call takes a number.
        let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, UNDONE) };
        if set == 0 { Ok(file) } else { Err(io::Error::last_os_error()) }
    };
    netns.run_in(open)?.with_context(|| format!("{device} of {}", netns.name()))
}

/// Carries packets in both directions until the other end of the pipe is closed.
fn carry([one, other]: &[File; 2], end: &OwnedFd) {
    let mut packet = vec![0; LARGEST];
    loop {
        let mut ready = [one.as_fd(), other.as_fd(), end.as_fd()]
            .map(|file| PollFd::new(file, PollFlags::POLLIN));
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return,
        }
        let [_, _, end] = ready;
        if end.any().unwrap_or(true) {
            return;
        }
        for (mut from, mut to) in [(one, other), (other, one)] {
            // A packet that does not fit is lost, as on any wire.
            while let Ok(length) = from.read(&mut packet) {
                drop(to.write(packet.get(..length).unwrap_or_default()));
            }
        }
    }
}
