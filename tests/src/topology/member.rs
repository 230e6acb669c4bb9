//! A member of a topology: a namespace with addresses, and in it a process that sends and answers questions for the
//! test.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

use super::address::{Addresses, Family};
use super::leftovers::Namespaces;
use crate::netns::Netns;
use crate::process::Home;
use crate::traffic::peer::Peer;
use crate::wait::wait_until;

/// The deadline for the kernel to enable a wire.
const SOON: Duration = Duration::from_secs(30);

/// A pod, the host of a node, or an external client.
#[derive(Debug)]
pub struct Member {
    name: String,
    // Dropped before the namespace, so that the process ends first.
    peer: Peer,
    home: Home,
    netns: Netns,
    addresses: Addresses,
}

impl Member {
    /// Wraps a namespace and starts the peer process in it, in `cgroup` if there is one.
    pub(crate) fn new(
        namespaces: &Namespaces,
        name: &str,
        mut netns: Netns,
        addresses: Addresses,
        cgroup: Option<PathBuf>,
    ) -> Result<Self> {
        if namespaces.kept {
            netns.keep();
        }
        let home = Home::new(netns.handle(), cgroup, namespaces.kept);
        let peer = Peer::start(name, &home)?;
        Ok(Self { name: name.to_owned(), peer, home, netns, addresses })
    }

    /// Returns the name, which its servers put into their answers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its namespace.
    pub const fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Returns the home of the member's processes.
    pub const fn home(&self) -> &Home {
        &self.home
    }

    /// Returns its addresses.
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Returns its address of a family.
    pub const fn ip(&self, family: Family) -> std::net::IpAddr {
        self.addresses.of(family)
    }

    /// Returns the process that sends and answers questions.
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Waits until all wires of the member carry packets: the kernel enables an end of a veth asynchronously.
    pub(crate) fn until_wired(&self) -> Result<()> {
        let carry = || -> Result<bool> {
            let of_wires = |device: &InterfaceAddress| {
                ["eth", "veth"].iter().any(|name| device.interface_name.starts_with(name))
            };
            let flags = getifaddrs()?.filter(of_wires).map(|device| device.flags);
            let is_shut = |flags: InterfaceFlags| {
                flags.contains(InterfaceFlags::IFF_UP)
                    && !flags.contains(InterfaceFlags::IFF_RUNNING)
            };
            Ok(!flags.into_iter().any(is_shut))
        };
        wait_until(SOON, &format!("wires of {} carry packets", self.name), || {
            self.netns.run_in(carry).ok()?.unwrap_or(false).then_some(())
        })
    }

    /// Whether every TCP connection of the member is open or closed, and none is being closed.
    pub fn is_quiet(&self) -> Result<bool> {
        // `FIN_WAIT1`, `FIN_WAIT2`, `CLOSE_WAIT`, `LAST_ACK`, `CLOSING`.
        const ENDING: [&str; 5] = ["04", "05", "08", "09", "0B"];
        let text = self.netns.proc_net("tcp")? + &self.netns.proc_net("tcp6")?;
        let states = text.lines().filter_map(|line| line.split_whitespace().nth(3));
        Ok(!states.into_iter().any(|state| ENDING.contains(&state)))
    }

    /// Returns the hardware address of an interface.
    pub fn hardware_address(&self, device: &str) -> Result<[u8; 6]> {
        let text = self.device_file(device, "address")?;
        let mut address = [0; 6];
        for (byte, digits) in address.iter_mut().zip(text.trim().split(':')) {
            *byte = u8::from_str_radix(digits, 16).with_context(|| format!("address {text}"))?;
        }
        Ok(address)
    }

    /// Returns a numeric property of an interface, such as `ifindex` or `mtu`.
    pub fn device_number(&self, device: &str, file: &str) -> Result<u32> {
        let text = self.device_file(device, file)?;
        text.trim().parse().with_context(|| format!("{file} of {device}: {text}"))
    }

    /// `/sys/class/net` shows the namespace in which it was mounted, so this reads the output of `ip`.
    fn device_file(&self, device: &str, file: &str) -> Result<String> {
        let json = self.netns.tool("ip", &["-json", "link", "show", "dev", device])?;
        let links: serde_json::Value = serde_json::from_str(&json)?;
        let link = links.get(0).with_context(|| format!("interface {device} of {}", self.name))?;
        let value = link.get(file).with_context(|| format!("{file} of {device}"))?;
        Ok(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }
}
