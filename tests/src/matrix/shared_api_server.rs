//! The control plane of all worlds, and the wires that connect them to it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::control_plane::{self, ControlPlane, Options};
use crate::join_all::locked;
use crate::netns::Netns;
use crate::topology::address::{self, Segment};
use crate::topology::{Addresses, Shape, Topology};

/// The address of the API server, the same in every world.
const API: Addresses =
    Addresses { v4: std::net::Ipv4Addr::new(192, 168, 70, 1), v6: std::net::Ipv6Addr::UNSPECIFIED };

/// Control planes that no test uses at the moment.
static IDLE: Mutex<Vec<SharedApiServer>> = Mutex::new(Vec::new());

/// A control plane to which worlds can be connected.
#[derive(Debug)]
pub struct SharedApiServer {
    // Dropped before the namespace that it lives in.
    control_plane: ControlPlane,
    topology: Topology,
    worlds: AtomicU8,
}

impl SharedApiServer {
    /// Starts a control plane with Node objects of `node-a` in `zone-a` and `node-b` in `zone-b`.
    pub fn start() -> Result<Self> {
        let topology = Topology::builder(Shape::Routed).nodes(0).build()?;
        topology.fabric().ip(&format!("address add {}/32 dev lo", API.v4))?;
        let control_plane = ControlPlane::start(Options {
            netns: Some(topology.fabric().name().to_owned()),
            address: API.v4.into(),
            ..Options::default()
        })?;
        for (name, number, zone) in [("node-a", 1, "zone-a"), ("node-b", 2, "zone-b")] {
            let addresses = Segment::First.host(address::node(number))?.both();
            let addresses = addresses.map(|address| address.to_string());
            let ranges = address::pod_ranges(number);
            control_plane.node(&control_plane::Node {
                name,
                addresses: &addresses.each_ref().map(String::as_str),
                pod_cidrs: &ranges.each_ref().map(String::as_str),
                labels: &[("topology.kubernetes.io/zone", zone)],
            })?;
        }
        Ok(Self { control_plane, topology, worlds: AtomicU8::new(0) })
    }

    /// Returns the control plane that an earlier test of this process left, with its objects, or starts one.
    pub fn take_over() -> Result<Self> {
        let idle = locked(&IDLE).pop();
        idle.map_or_else(Self::start, Ok)
    }

    /// Leaves the control plane to the next test, whose objects must not conflict with those of this test.
    pub fn leave(self) {
        locked(&IDLE).push(self);
    }

    /// Returns the control plane.
    pub const fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// Creates or changes objects, and writes the status of those that have one.
    pub fn publish(&self, objects: &[Value]) -> Result<()> {
        let list = |items: Vec<&Value>| {
            json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
        };
        if objects.is_empty() {
            return Ok(());
        }
        self.control_plane.apply(&list(objects.iter().collect()))?;
        let services = objects.iter().filter(|object| object["status"]["loadBalancer"].is_object());
        let status = services.collect::<Vec<_>>();
        if status.is_empty() {
            Ok(())
        } else {
            self.control_plane.client().apply_status(&list(status))
        }
    }

    /// Connects a world's segment to the API server. All worlds have the same addresses, so each is masqueraded.
    pub(super) fn connect(&self, fabric: &Netns) -> Result<()> {
        let number = self.worlds.fetch_add(1, Ordering::Relaxed);
        let end = |host: u8| {
            let (third, fourth) = (71 + number / 64, 4 * (number % 64) + host);
            format!("192.168.{third}.{fourth}")
        };
        let (ours, theirs) = (end(1), end(2));
        self.topology
            .fabric()
            .ip(&format!(
                "link add world{number} type veth peer name api netns {}
                 address add {ours}/30 dev world{number}
                 link set world{number} up",
                fabric.name()
            ))
            .context("wire to the API server")?;
        fabric.ip(&format!(
            "address add {theirs}/30 dev api
             link set api up
             route add {} via {ours}",
            API.v4
        ))?;
        let rules = "table ip api {
            chain out {
              type nat hook postrouting priority srcnat;
              oifname \"api\" masquerade
            }
          }";
        fabric.tool_fed("nft", &["-f", "-"], rules).map(drop)
    }
}
