//! The smallest tc programs that serve one `ClusterIP` with one backend: an upper bound for every data path that
//! translates at a pod's interface.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result};
use aya::programs::SchedClassifier;
use aya::programs::links::LinkOrder;
use aya::programs::tc::{TcAttachOptions, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use lb_tests::rig::{Rig, TARGET};
use lb_tests::topology::Family;

/// The loaded programs, attached as long as this value lives.
pub(super) struct Minimal(#[expect(dead_code, reason = "it holds the links")] Ebpf);

/// The constants of the programs, in the layout of `lb-ebpf/src/reference_minimal.rs`. An IPv4 address is one word.
#[derive(Clone, Copy)]
struct Setting {
    ends: [SocketAddr; 2],
    next_hop: IpAddr,
    /// The interface towards the backend and the one towards the client, by index; 0 if the stack is to forward.
    devices: [u32; 2],
}

impl Setting {
    fn words<const N: usize>(&self) -> Result<[u32; N]> {
        let [frontend, backend] = self.ends;
        let mut words = Vec::new();
        for address in [frontend.ip(), backend.ip(), self.next_hop] {
            let octets = match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            words.extend(octets.chunks_exact(4).filter_map(word));
        }
        let ports = [frontend.port(), backend.port()].map(u16::to_be_bytes);
        words.extend(word(ports.as_flattened()));
        words.extend(self.devices);
        words.try_into().ok().context("a setting of another size")
    }
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_ne_bytes)
}

impl Minimal {
    /// Serves the first pod of the first node: its packets to these addresses, one of each family, go to the first pod
    /// of the second node.
    pub(super) fn attach(
        rig: &Rig,
        object: &Path,
        frontends: impl Fn(Family) -> SocketAddr,
        through_stack: bool,
    ) -> Result<Self> {
        let (node, pod, backend) = (rig.node(0)?, rig.pod(0, 0)?, rig.pod(1, 0)?);
        let (uplink, device) = ("eth0", pod.device());
        let devices = if through_stack {
            [0; 2]
        } else {
            [node.device_number(uplink, "ifindex")?, node.device_number(device, "ifindex")?]
        };
        let setting = |family| -> Result<Setting> {
            let ends = [frontends(family), backend.addresses().socket(family, TARGET)];
            Ok(Setting { ends, next_hop: rig.node(1)?.ip(family), devices })
        };
        let (v4, v6): ([u32; 6], [u32; 15]) =
            (setting(Family::V4)?.words()?, setting(Family::V6)?.words()?);
        let object = fs::read(object).with_context(|| format!("{}", object.display()))?;
        // Without the stack, answers are translated where they arrive; with it, where the stack delivers them to the
        // pod.
        let back = if through_stack {
            (device, TcAttachType::Egress)
        } else {
            (uplink, TcAttachType::Ingress)
        };
        let attach = || -> Result<Ebpf> {
            let mut loader = EbpfLoader::new();
            let loader = loader.override_global("MINIMAL4", &v4, true);
            let mut ebpf = loader.override_global("MINIMAL6", &v6, true).load(&object)?;
            for (name, (device, hook)) in
                [("minimal_ask", (device, TcAttachType::Ingress)), ("minimal_answer", back)]
            {
                let program: &mut SchedClassifier = ebpf
                    .program_mut(name)
                    .with_context(|| format!("program {name}"))?
                    .try_into()?;
                program.load()?;
                let order = TcAttachOptions::TcxOrder(LinkOrder::default());
                program.attach_with_options(device, hook, order)?;
            }
            Ok(ebpf)
        };
        Ok(Self(node.home().run_in(attach)?.context("the minimal programs")?))
    }
}
