//! The settings of `lo` that matter. They are written by netlink, because `/proc/sys` may be read-only in a container.

use std::fs;
use std::path::Path;

use futures::TryStreamExt as _;
use netlink_packet_core::{DefaultNla, NLA_F_NESTED};
use netlink_packet_route::link::{
    AfSpecInet, AfSpecUnspec, InetDevConf, LinkAttribute, LinkMessage,
};
use rtnetlink::Handle;
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::record;

/// Index of `lo`, the same in every network namespace.
pub(super) const INDEX: u32 = 1;
/// `IFLA_INET_CONF` of `linux/if_link.h`.
const INET_CONF: u16 = 1;
/// `IPV4_DEVCONF_FORWARDING`, `_ACCEPT_LOCAL` and `_ROUTE_LOCALNET` of `linux/ip.h`.
const FORWARDING: u16 = 1;
const ACCEPT_LOCAL: u16 = 23;
const ROUTE_LOCALNET: u16 = 26;
/// The one setting that no netlink message sets.
const FORWARDING_V6: &str = "/proc/sys/net/ipv6/conf/lo/forwarding";

/// The settings of `net.ipv4.conf.lo` and `net.ipv6.conf.lo` that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "they are the kernel's, one by one")]
pub(super) struct Loopback {
    /// `forwarding`: `bpf_fib_lookup` works for packets from this interface.
    forwarding: bool,
    /// `accept_local`: packets with a source address of this host are accepted.
    accept_local: bool,
    /// `route_localnet`: packets from and to 127.0.0.0/8 are accepted.
    route_localnet: bool,
    /// IPv6 `forwarding`; true if the kernel has no IPv6.
    forwarding_v6: bool,
}

impl Loopback {
    /// Reads the current settings.
    pub(super) async fn read(handle: &Handle) -> Result<Self, Error> {
        let mut links = handle.link().get().match_index(INDEX).execute();
        let link = links.try_next().await.map_err(|error| Error::Netlink("loopback", error))?;
        let conf = link.as_ref().and_then(conf).ok_or(Error::NoLoopback)?;
        let forwarding_v6 = fs::read_to_string(FORWARDING_V6);
        Ok(Self {
            forwarding: conf.forwarding != 0,
            accept_local: conf.accept_local != 0,
            route_localnet: conf.route_localnet != 0,
            // Without the file the kernel has no IPv6, and nothing is to be changed.
            forwarding_v6: forwarding_v6.map_or(true, |text| text.trim() != "0"),
        })
    }

    /// Returns the settings that packets of this host need. With forwarding, the kernel deletes the IPv6 default routes
    /// that it has learned from router advertisements, unless `accept_ra` is 2 (`addrconf_fixup_forwarding` in
    /// `net/ipv6/addrconf.c`): without `needs_v6` it stays as it is.
    pub(super) const fn opened(self, serves_loopback: bool, needs_v6: bool) -> Self {
        Self {
            forwarding: true,
            accept_local: true,
            route_localnet: self.route_localnet || serves_loopback,
            forwarding_v6: self.forwarding_v6 || needs_v6,
        }
    }

    /// Reports whether packets with a source address of this host are accepted, which is no default of the kernel.
    pub(super) const fn accepts_local(self) -> bool {
        self.accept_local
    }

    /// Writes the settings of IPv4.
    pub(super) async fn write(self, handle: &Handle) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.index = INDEX;
        let inet = AfSpecInet::Other(DefaultNla::new(INET_CONF | NLA_F_NESTED, self.nested()));
        message.attributes.push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![inet])]));
        let written = handle.link().set(message).execute().await;
        written.map_err(|error| Error::Netlink("settings of the loopback interface", error))
    }

    /// Writes the setting of IPv6 if it differs from the current one.
    pub(super) fn write_v6(self, now: Self) -> Result<(), Error> {
        if now.forwarding_v6 == self.forwarding_v6 {
            return Ok(());
        }
        // Netlink has no attribute for IPv6 forwarding of an interface, only the sysctl can set it.
        let value = if self.forwarding_v6 { "1" } else { "0" };
        let written = fs::write(FORWARDING_V6, value);
        written.map_err(|error| Error::System("net.ipv6.conf.lo.forwarding", error))
    }

    /// Returns the IPv4 settings as nested attributes.
    fn nested(self) -> Vec<u8> {
        let all = [
            (FORWARDING, self.forwarding),
            (ACCEPT_LOCAL, self.accept_local),
            (ROUTE_LOCALNET, self.route_localnet),
        ];
        let attribute = |(kind, value): (u16, bool)| {
            // Each attribute has a header of 4 bytes and a value of 4.
            let [head, kind] = [8_u16, kind].map(u16::to_ne_bytes);
            [head.as_slice(), &kind, &u32::from(value).to_ne_bytes()].concat()
        };
        all.into_iter().flat_map(attribute).collect()
    }

    /// Saves the settings as the original ones, unless an earlier run did.
    pub(super) fn keep(self, record: &Path) -> Result<(), Error> {
        if Self::recorded(record).is_some() {
            return Ok(());
        }
        record::write(record, &self)
    }

    /// Returns the saved settings, if there are any.
    pub(super) fn recorded(record: &Path) -> Option<Self> {
        record::read(record)
    }
}

fn conf(link: &LinkMessage) -> Option<&InetDevConf> {
    let families = link.attributes.iter().find_map(|attribute| {
        if let LinkAttribute::AfSpecUnspec(families) = attribute { Some(families) } else { None }
    })?;
    let inet = families
        .iter()
        .find_map(|family| if let AfSpecUnspec::Inet(inet) = family { Some(inet) } else { None })?;
    inet.iter()
        .find_map(|value| if let AfSpecInet::DevConf(conf) = value { Some(conf) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSED: Loopback = Loopback {
        forwarding: false,
        accept_local: false,
        route_localnet: false,
        forwarding_v6: false,
    };

    #[test]
    fn only_an_open_interface_shows_that_an_agent_was_here() {
        assert!(CLOSED.opened(false, false).accepts_local() && !CLOSED.accepts_local());
    }

    #[test]
    fn loopback_routes_its_network_only_where_node_ports_are_served_there() {
        assert!(!CLOSED.opened(false, true).route_localnet);
        assert!(CLOSED.opened(true, true).route_localnet);
        let before = Loopback { route_localnet: true, ..CLOSED };
        assert!(before.opened(false, true).route_localnet, "an operator may need it");
    }

    #[test]
    fn forwarding_of_ipv6_stays_as_it_is_unless_it_is_needed() {
        assert!(!CLOSED.opened(true, false).forwarding_v6);
        assert!(CLOSED.opened(true, true).forwarding_v6);
        let before = Loopback { forwarding_v6: true, ..CLOSED };
        assert!(before.opened(true, false).forwarding_v6);
    }

    #[test]
    fn the_first_record_stays() {
        let directory = tempfile::tempdir().unwrap();
        let record = directory.path().join("below/loopback.json");
        assert_eq!(Loopback::recorded(&record), None);
        CLOSED.keep(&record).unwrap();
        CLOSED.opened(true, true).keep(&record).unwrap();
        assert_eq!(Loopback::recorded(&record), Some(CLOSED));
    }

    #[test]
    fn a_record_that_cannot_be_read_is_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let record = directory.path().join("loopback.json");
        fs::write(&record, "").unwrap();
        CLOSED.keep(&record).unwrap();
        assert_eq!(Loopback::recorded(&record), Some(CLOSED));
    }

    #[test]
    fn attributes_are_as_the_kernel_reads_them() {
        let expected =
            [[8, 0, 1, 0, 1, 0, 0, 0], [8, 0, 23, 0, 1, 0, 0, 0], [8, 0, 26, 0, 0, 0, 0, 0]];
        if cfg!(target_endian = "little") {
            assert_eq!(CLOSED.opened(false, true).nested(), expected.concat());
        }
    }
}
