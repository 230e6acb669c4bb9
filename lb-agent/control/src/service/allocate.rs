//! Allocation: which of the free addresses and ports a Service gets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::families::prefers_as_before;
use super::model::Service;
use super::outcome::Refusal;
use super::ranges::{AddressRange, Dice, Ranges, Taken};
use crate::check;
use crate::family::Family;
use crate::field::{Cause, list};

/// The ranges and bookings that allocation reads, and the ports that it has given in this request.
pub(crate) struct Allocator<'a, 'd> {
    pub(crate) ranges: &'a Ranges,
    pub(crate) taken: &'a dyn Taken,
    pub(crate) dice: &'a mut Dice<'d>,
    pub(crate) is_dry: bool,
    /// Ports given in this request.
    pub(crate) ports: BTreeSet<u16>,
}

const TAKEN_ADDRESS: &str = "provided IP is already allocated";
const TAKEN_PORT: &str = "provided port is already allocated";
/// A dry run without earlier ports returns the port after this one, as upstream does.
const DRY_PORT: u16 = 32_768;

impl Allocator<'_, '_> {
    /// Allocates cluster addresses: the requested ones, else random ones; for all families of the Service or for none.
    pub(crate) fn addresses(
        &mut self,
        new: &mut Service,
        old: Option<&Service>,
    ) -> Result<(), Refusal> {
        let Some(old) = old else { return self.all_addresses(new) };
        // An update allocates only where it makes the Service need an address: type changed from ExternalName, or a
        // second family added.
        if prefers_as_before(new, old) || old.is_headless() {
            return Ok(());
        }
        if new.is_external_name() {
            return Ok(());
        }
        if old.is_external_name() {
            return self.all_addresses(new);
        }
        let is_second = old.spec.ip_families.len() == 1 && new.spec.ip_families.len() == 2;
        if is_second {
            if new.spec.cluster_ips.len() < 2 {
                new.spec.cluster_ips.push(String::new());
            }
            self.address(new, 1)?;
        }
        Ok(())
    }

    fn all_addresses(&mut self, new: &mut Service) -> Result<(), Refusal> {
        let is_none = new.spec.cluster_ips.first().is_some_and(|it| it == "None");
        if new.is_external_name() || is_none {
            return Ok(());
        }
        // One place per family, where an empty text requests any address.
        let wanted = new.spec.ip_families.len().max(new.spec.cluster_ips.len());
        new.spec.cluster_ips.resize(wanted, String::new());
        for index in 0..new.spec.ip_families.len() {
            self.address(new, index)?;
        }
        new.spec.cluster_ip = new.spec.cluster_ips.first().cloned().unwrap_or_default();
        Ok(())
    }

    fn address(&mut self, new: &mut Service, index: usize) -> Result<(), Refusal> {
        let spec = &mut new.spec;
        let family = spec.ip_families.get(index).and_then(|it| Family::of(it));
        let (Some(range), Some(asked)) =
            (family.and_then(|it| self.ranges.of(it)), spec.cluster_ips.get(index))
        else {
            return Ok(());
        };
        let given = if asked.is_empty() {
            let free = if self.is_dry {
                // The network's own address stands for an address that a real request would get.
                Some(range.net().network())
            } else {
                range.free(self.dice, |it| self.taken.has_address(it))
            };
            free.map(|it| it.to_string()).ok_or_else(|| {
                let name = &new.metadata.name;
                let text =
                    format!("failed to allocate a serviceIP for Service {name:?}: range is full");
                Refusal::Internal(text)
            })?
        } else {
            let address = check::sloppy(asked).map(|it| it.to_canonical());
            if let Some(fault) = self.address_fault(address, range) {
                let detail = format!("failed to allocate IP {asked}: {fault}");
                let all = list(&spec.cluster_ips);
                return Err(Cause::invalid("spec.clusterIPs", all, &detail).into());
            }
            asked.clone()
        };
        if let Some(place) = spec.cluster_ips.get_mut(index) {
            *place = given;
        }
        Ok(())
    }

    /// Returns why an address cannot be given. A dry run words it differently, as upstream does.
    fn address_fault(&self, address: Option<IpAddr>, range: AddressRange) -> Option<String> {
        let is_in = |it: IpAddr| self.ranges.all().any(|range| range.contains(it));
        let Some(booked) = address.filter(|it| is_in(*it)) else {
            let net = range.net();
            return Some(if self.is_dry {
                let asked = address.map(|it| it.to_string()).unwrap_or_default();
                format!(
                    "the provided IP ({asked}) is not in the valid range. The range of valid IPs is {net}"
                )
            } else {
                "the provided network does not match the current range".into()
            });
        };
        self.taken.has_address(booked).then(|| TAKEN_ADDRESS.into())
    }

    /// Allocates node ports for a new Service: ports with one number share a node port, whatever their protocols.
    pub(crate) fn new_node_ports(&mut self, new: &mut Service) -> Result<(), Refusal> {
        let is_wanted = wants_node_ports(new);
        // A port later in the list may request a node port: it serves for all with its number.
        let mut wanted = BTreeMap::new();
        for port in new.spec.ports.iter().filter(|it| it.node_port != 0) {
            wanted.entry(port.port).or_insert(port.node_port);
        }
        let mut by_port = BTreeMap::new();
        for index in 0..new.spec.ports.len() {
            let Some(port) = new.spec.ports.get(index) else { continue };
            let (number, asked) = (port.port, port.node_port);
            if asked == 0 && !is_wanted {
                continue;
            }
            let given = by_port.get(&number).copied();
            let node_port = match given {
                Some(given) if asked == 0 || asked == given => given,
                Some(_) => self.port(index, asked)?,
                None => {
                    let node_port = match wanted.get(&number) {
                        Some(asked) => self.port(index, *asked)?,
                        None => self.any_port()?,
                    };
                    by_port.insert(number, node_port);
                    node_port
                }
            };
            if let Some(port) = new.spec.ports.get_mut(index) {
                port.node_port = node_port;
            }
        }
        Ok(())
    }

    /// Allocates node ports that an update adds.
    pub(crate) fn changed_node_ports(
        &mut self,
        new: &mut Service,
        old: &Service,
    ) -> Result<(), Refusal> {
        let is_wanted = wants_node_ports(new);
        // Node ports of an ExternalName are not booked, so they are none of the Service's own.
        let before = old.spec.ports.iter().filter(|_| old.has_node_ports());
        let before: BTreeSet<i32> = before.map(|it| it.node_port).collect();
        let mut now = BTreeSet::new();
        for (index, port) in new.spec.ports.iter_mut().enumerate() {
            if port.node_port == 0 {
                if !is_wanted {
                    continue;
                }
                port.node_port = self.any_port()?;
            } else {
                let is_given =
                    u16::try_from(port.node_port).is_ok_and(|it| self.ports.contains(&it));
                if !before.contains(&port.node_port) && !is_given {
                    self.port(index, port.node_port)?;
                }
            }
            let key = (port.protocol.clone(), port.node_port);
            if !now.insert(key) {
                // Upstream answers with an internal error here; the client can correct this one.
                let field = format!("spec.ports[{index}].nodePort");
                return Err(Cause::duplicate(field, port.node_port).into());
            }
        }
        Ok(())
    }

    /// Allocates the health check port, by which load balancers query this node.
    pub(crate) fn health_check(&mut self, new: &mut Service) -> Result<(), Refusal> {
        let asked = new.spec.health_check_node_port;
        new.spec.health_check_node_port = if asked == 0 {
            self.any_port()?
        } else {
            // Upstream answers with an internal error here; the client can correct this one.
            self.port_at("spec.healthCheckNodePort", asked)?
        };
        Ok(())
    }

    fn port(&mut self, index: usize, asked: i32) -> Result<i32, Refusal> {
        self.port_at(&format!("spec.ports[{index}].nodePort"), asked)
    }

    fn port_at(&mut self, field: &str, asked: i32) -> Result<i32, Refusal> {
        // A dry run does not check the range, as in upstream.
        let is_in = self.is_dry || self.ranges.ports.contains(asked);
        let port = u16::try_from(asked).ok().filter(|_| is_in);
        let Some(port) = port else {
            let ports = self.ranges.ports;
            let detail = format!(
                "provided port is not in the valid range. The range of valid ports is {ports}"
            );
            return Err(Cause::invalid(field, asked, &detail).into());
        };
        if self.taken.has_port(port) || !self.ports.insert(port) {
            return Err(Cause::invalid(field, asked, TAKEN_PORT).into());
        }
        Ok(asked)
    }

    fn any_port(&mut self) -> Result<i32, Refusal> {
        let Self { ranges, taken, dice, ports, .. } = self;
        // A dry run books nothing and must not draw random numbers. It names a port that is only unique within the
        // object.
        let port = if self.is_dry {
            Some(ports.last().map_or(DRY_PORT, |it| *it).saturating_add(1))
        } else {
            ranges.ports.free(dice, |it| taken.has_port(it) || ports.contains(&it))
        };
        let full = || Refusal::Internal("failed to allocate a nodePort: range is full".into());
        let port = port.ok_or_else(full)?;
        ports.insert(port);
        Ok(port.into())
    }
}

fn wants_node_ports(service: &Service) -> bool {
    let is_balancer = service.is_load_balancer();
    service.spec.kind == "NodePort"
        || (is_balancer && service.spec.allocate_load_balancer_node_ports != Some(false))
}
