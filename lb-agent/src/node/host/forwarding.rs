//! Interfaces that do not forward: reports external ones, and notices that the loopback interface no longer forwards.
//!
//! `net.ipv4.ip_forward` and `net.ipv6.conf.all.forwarding`, written at run time, set the same value on every
//! interface.

use std::path::Path;
use std::{fs, io};

use super::loopback::INDEX;
use crate::netlink::{self, Notifications};

/// `RTM_NEWNETCONF`.
const NEW: u16 = 80;
/// `RTNLGRP_IPV4_NETCONF` and `RTNLGRP_IPV6_NETCONF`.
const GROUPS: [u32; 2] = [24, 25];
/// Size of `struct netconfmsg`, padded, and its attributes.
const HEAD: usize = 4;
const INTERFACE: u16 = 1;
const FORWARDING: u16 = 2;

/// Returns the problem if the stack does not forward what comes in by these interfaces, of the families that are served:
/// packets of Services to pods are dropped then, after their translation.
pub fn problem(external: &[String], [serves_v4, serves_v6]: [bool; 2]) -> Option<String> {
    problem_in(Path::new("/proc/sys/net"), if serves_v4 { external } else { &[] }, serves_v6)
}

fn problem_in(directory: &Path, external: &[String], serves_v6: bool) -> Option<String> {
    // An interface that is gone has no such file, and drops nothing.
    let is_off =
        |file: &str| fs::read_to_string(directory.join(file)).is_ok_and(|text| text.trim() == "0");
    let mut off: Vec<String> = external
        .iter()
        .filter(|name| is_off(&format!("ipv4/conf/{name}/forwarding")))
        .map(|name| format!("net.ipv4.conf.{name}.forwarding"))
        .collect();
    // For IPv6 the setting of an interface does not count (`ip6_forward` in net/ipv6/ip6_output.c).
    if serves_v6 && is_off("ipv6/conf/all/forwarding") {
        off.push("net.ipv6.conf.all.forwarding".to_owned());
    }
    (!off.is_empty()).then(|| {
        format!(
            "{} is 0, so the node drops packets of Services to pods: set net.ipv4.ip_forward or \
             net.ipv6.conf.all.forwarding to 1, and remove the setting that turned it off",
            off.join(" and ")
        )
    })
}

/// Notifications of changed settings of interfaces.
pub(super) struct ForwardingChanges(Notifications);

impl ForwardingChanges {
    /// Subscribes to changes of both families.
    pub(super) fn follow() -> io::Result<Self> {
        Notifications::of(&GROUPS).map(Self)
    }

    /// Waits until the loopback interface stops forwarding. Dropped notifications count as one of that.
    pub(super) async fn stops(&mut self) -> io::Result<()> {
        loop {
            if self.0.next().await?.is_none_or(|datagram| stops_loopback(&datagram)) {
                return Ok(());
            }
        }
    }
}

/// Reports whether a datagram says that the loopback interface does not forward.
///
/// The messages for `all` and `default` do not count: the kernel sends one for each interface as well, once the
/// interface has the value (`inet_forward_change` in net/ipv4/devinet.c, `dev_forward_change` in net/ipv6/addrconf.c).
fn stops_loopback(mut datagram: &[u8]) -> bool {
    let mut messages = std::iter::from_fn(|| netlink::next(&mut datagram));
    messages.any(|(kind, body)| {
        let attributes = body.get(HEAD..).unwrap_or_default();
        let value = |kind| {
            let value = netlink::find(attributes, kind)?;
            value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
        };
        kind == NEW && value(INTERFACE) == Some(INDEX) && value(FORWARDING) == Some(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_that_does_not_forward_is_a_problem_that_names_its_setting() {
        let directory = tempfile::tempdir().unwrap();
        let write = |file: &str, value: &str| {
            let file = directory.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, value).unwrap();
        };
        let said = |names: &[&str], v6| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            problem_in(directory.path(), &names, v6)
        };
        write("ipv4/conf/eth0/forwarding", "1\n");
        write("ipv4/conf/eth0.7/forwarding", "0\n");
        write("ipv6/conf/all/forwarding", "0\n");
        assert_eq!(said(&["eth0", "gone"], false), None);
        let text = said(&["eth0", "eth0.7"], true).unwrap();
        let named = "net.ipv4.conf.eth0.7.forwarding and net.ipv6.conf.all.forwarding is 0";
        assert!(text.starts_with(named), "{text}");
    }

    fn message(kind: u16, family: u8, attributes: &[(u16, i32)]) -> Vec<u8> {
        let attributes = attributes
            .iter()
            .flat_map(|(kind, value)| netlink::attribute(*kind, &value.to_ne_bytes()));
        let body: Vec<u8> = [family, 0, 0, 0].into_iter().chain(attributes).collect();
        netlink::message(kind, 0, &body)
    }

    /// The messages that Linux 6.18 sends for `sysctl -w net.ipv4.ip_forward=0` in a namespace with `lo` alone.
    #[test]
    fn forwarding_that_stops_on_loopback_counts_and_nothing_else() {
        const ALL: i32 = -1;
        const DEFAULT: i32 = -2;
        let of = |index, value| message(NEW, 2, &[(INTERFACE, index), (FORWARDING, value)]);
        assert!(stops_loopback(&of(1, 0)));
        let v6 = message(NEW, 10, &[(INTERFACE, 1), (FORWARDING, 0)]);
        assert!(stops_loopback(&v6));
        for others in [of(ALL, 0), of(DEFAULT, 0), of(2, 0), of(1, 1)] {
            assert!(!stops_loopback(&others));
        }
        let several = [of(ALL, 0), of(DEFAULT, 0), of(1, 0)].concat();
        assert!(stops_loopback(&several), "the last of one datagram");
        let other_setting = message(NEW, 2, &[(INTERFACE, 1), (3, 0)]);
        assert!(!stops_loopback(&other_setting));
        let removed = message(NEW + 1, 2, &[(INTERFACE, 1), (FORWARDING, 0)]);
        assert!(!stops_loopback(&removed));
        let whole = of(1, 0);
        assert!((0..whole.len()).all(|length| !stops_loopback(&whole[..length])), "cut short");
    }

    #[tokio::test]
    async fn changes_can_be_followed_without_privileges() {
        assert!(ForwardingChanges::follow().is_ok());
    }
}
