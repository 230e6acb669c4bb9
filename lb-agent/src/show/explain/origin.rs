//! Finds where a client is. Its packets arrive on a pod or external interface, or this node sends them.

use std::net::IpAddr;

use lb_common::addr::{Ip, Protocol};
use lb_common::config::{Device, Settings, address};
use lb_common::forward::Role;
use lb_common::forward::socket::depends_on_address;
use lb_common::service::Service;

use super::{ClientPacket, route};
use crate::maps::Maps;
use crate::show::Error;
use crate::syscall::{device_index, device_name};

/// The origin of a client's packet: the interface at which it is handled first, the role there, and the direction.
#[derive(Debug)]
pub(super) struct PacketOrigin {
    /// The index of the interface.
    pub(super) device: u32,
    pub(super) role: Role,
    /// The client is a process of this node: its packets leave on the interface.
    pub(super) is_node: bool,
    /// The interface is one of several equal ports of this bridge.
    pub(super) bridge: Option<u32>,
}

impl PacketOrigin {
    pub(super) fn find(
        maps: &Maps,
        settings: &Settings,
        asked: &ClientPacket,
    ) -> Result<Self, Error> {
        let from = asked.from.ip();
        let is_node = from.is_loopback() || is_own(maps, from)?;
        // With an interface, a packet from the node's own address is one that arrives from outside.
        if is_node && asked.device.is_none() {
            return Self::node(maps, settings, asked);
        }
        let device = match &asked.device {
            Some(name) => device_index(name).ok_or_else(|| Error::NoInterface(name.clone()))?,
            None => route::to(from).map_err(|source| Error::NoRoute { to: from, source })?.device,
        };
        if let Some(entry) = maps.device(device)? {
            let role = role(&entry);
            // By `lo` only the node itself sends, and its packets meet the programs where they leave.
            return Ok(Self { device, role, is_node: role == Role::Host, bridge: None });
        }
        port_of(maps, device)
    }

    /// Finds the interface of a packet of this node: `lo` for its own addresses, else that of the route.
    fn node(maps: &Maps, settings: &Settings, asked: &ClientPacket) -> Result<Self, Error> {
        let to = asked.to.ip();
        if to.is_loopback() || is_own(maps, to)? {
            let device = Role::LOOPBACK;
            return Ok(Self { device, role: Role::Host, is_node: true, bridge: None });
        }
        let device = route::to(to).map_err(|source| Error::NoRouteOut { to, source })?.device;
        let entry = maps.device(device)?;
        let is_connected =
            asked.protocol == Protocol::TCP && settings.node.socket_mode != Settings::SOCKETS_OFF;
        // The hooks of sockets need no program on the way out.
        let entry = entry.or_else(|| is_connected.then(Device::default));
        let entry = entry.ok_or_else(|| Error::NotServed(name(device)))?;
        Ok(Self { device, role: role(&entry), is_node: true, bridge: None })
    }

    /// Reports whether connect(2) selects the backend for TCP sockets of this client.
    pub(super) fn has_hooks(&self, settings: &Settings, service: Option<Service>) -> bool {
        match (settings.node.socket_mode, self.is_node, self.role) {
            (Settings::SOCKETS_OFF, ..) => false,
            (_, true, _) => {
                service.is_none_or(|service| !depends_on_address(settings, &service, true))
            }
            (Settings::SOCKETS_ALL, false, Role::Pod) => {
                service.is_some_and(|service| !depends_on_address(settings, &service, false))
            }
            _ => false,
        }
    }

    /// Returns for example `pod at veth-a1`.
    pub(super) fn words(&self) -> String {
        let at = name(self.bridge.unwrap_or(self.device));
        match (self.is_node, self.role, self.bridge) {
            (true, ..) | (_, Role::Host, _) => format!("process on this node, through {at}"),
            (false, Role::Pod, Some(_)) => format!("pod behind {at}"),
            (false, Role::Pod, None) => format!("pod at {at}"),
            (false, ..) => format!("external client at {at}"),
        }
    }
}

fn is_own(maps: &Maps, ip: IpAddr) -> Result<bool, Error> {
    Ok(maps.address(&Ip::from(ip))?.is_some_and(|bits| bits & address::NODE != 0))
}

const fn role(entry: &Device) -> Role {
    if entry.flags & Device::POD != 0 {
        Role::Pod
    } else if entry.flags & Device::HOST != 0 {
        Role::Host
    } else {
        Role::External
    }
}

fn name(device: u32) -> String {
    device_name(device).unwrap_or_else(|| format!("#{device}"))
}

/// Returns any port of a bridge, if packets are treated alike on all of them.
fn port_of(maps: &Maps, bridge: u32) -> Result<PacketOrigin, Error> {
    let mut ports = maps.devices()?;
    ports.retain(|(_, entry)| entry.bridge == bridge);
    let kind = |entry: &Device| entry.flags & (Device::POD | Device::LOCAL_CLIENTS);
    let Some((device, entry)) = ports.first().copied() else {
        return Err(Error::NotServed(name(bridge)));
    };
    if ports.iter().any(|(_, other)| kind(other) != kind(&entry)) {
        return Err(Error::SeveralPorts(name(bridge)));
    }
    Ok(PacketOrigin { device, role: role(&entry), is_node: false, bridge: Some(bridge) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_is_that_of_the_programs_at_the_interface() {
        let of = |flags| role(&Device { flags, ..Device::default() });
        assert_eq!(of(Device::POD | Device::LOCAL_CLIENTS | Device::PEER), Role::Pod);
        assert_eq!(of(Device::HOST | Device::LOCAL_CLIENTS), Role::Host);
        assert_eq!(of(Device::CARRIES), Role::External);
        let device = Role::LOOPBACK;
        let lo = PacketOrigin { device, role: Role::Host, is_node: false, bridge: None };
        assert!(lo.words().starts_with("process on this node"), "{}", lo.words());
    }
}
