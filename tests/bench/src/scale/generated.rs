//! Generated manifests of many services, and one service that changes.

use std::fs;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_agent::maps::Maps;
use lb_common::addr::{Ip, Port, Protocol};
use lb_common::service::Frontend;

/// The number of services in one manifest file.
const PER_FILE: u32 = 500;
/// The deadline for a change.
const PATIENCE: Duration = Duration::from_secs(10);

/// A service whose endpoints change.
pub(super) struct Probe {
    file: PathBuf,
    staged: PathBuf,
}

const PROBE: Ipv4Addr = Ipv4Addr::new(10, 111, 255, 254);

impl Probe {
    /// Writes it into `directory`, which the agent watches; `staged` is a directory that it does not watch.
    pub(super) fn new(directory: &Path, staged: &Path) -> Result<Self> {
        let probe = Self { file: directory.join("probe.yaml"), staged: staged.join("probe") };
        probe.write(0)?;
        Ok(probe)
    }

    fn write(&self, number: u32) -> Result<()> {
        let text = documents("probe", PROBE, number, 3);
        fs::write(&self.staged, text)?;
        fs::rename(&self.staged, &self.file).context("probe")
    }

    /// Changes the endpoints; returns the time from the new content of the file to the new set in the map.
    pub(super) fn change(&self, maps: &Maps, number: u32) -> Result<Duration> {
        let frontend = Frontend::new(Ip::v4(PROBE.octets()), Port::new(80), Protocol::TCP);
        let generation = || -> Result<u32> {
            Ok(maps.service(&frontend)?.context("the probe is not in the map")?.generation)
        };
        let before = generation()?;
        let began = Instant::now();
        self.write(number)?;
        // No sleep between reads: it would be part of the measured time.
        while generation()? == before {
            ensure!(began.elapsed() < PATIENCE, "change {number} does not reach the map");
            std::thread::yield_now();
        }
        Ok(began.elapsed())
    }
}

/// Writes a range of services with this number of endpoints each.
pub(super) fn generate(directory: &Path, services: Range<u32>, endpoints: u32) -> Result<()> {
    for first in services.clone().step_by(PER_FILE as usize) {
        let mut text = String::new();
        for number in first..services.end.min(first + PER_FILE) {
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number);
            let name = format!("service-{number}");
            text.push_str(&documents(&name, address, number * endpoints, endpoints));
            text.push_str("\n---\n");
        }
        fs::write(directory.join(format!("{first}.yaml")), text)?;
    }
    Ok(())
}

/// A Service and its slice, with the fields of an API server that the agent uses.
fn documents(name: &str, address: Ipv4Addr, first: u32, endpoints: u32) -> String {
    let endpoint = |number: u32| {
        let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 128, 0, 1)) + first + number);
        let node = (first + number) % 100;
        format!(
            r#"{{"addresses":["{ip}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},"nodeName":"node-{node}"}}"#
        )
    };
    let slice: Vec<String> = (0..endpoints).map(endpoint).collect();
    let slice = slice.join(",");
    format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}","namespace":"scale"}},"spec":{{"type":"ClusterIP","clusterIP":"{address}","clusterIPs":["{address}"],"ipFamilies":["IPv4"],"ports":[{{"name":"http","protocol":"TCP","port":80,"targetPort":8080}}]}}}}
---
{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"{name}-abcde","namespace":"scale","labels":{{"kubernetes.io/service-name":"{name}"}}}},"addressType":"IPv4","ports":[{{"name":"http","protocol":"TCP","port":8080}}],"endpoints":[{slice}]}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_documents_are_json() {
        let text = documents("a", PROBE, 7, 2);
        let [service, slice] = text.split("---").collect::<Vec<_>>().try_into().unwrap();
        drop(serde_json::from_str::<serde_json::Value>(service).unwrap());
        let slice: serde_json::Value = serde_json::from_str(slice).unwrap();
        assert_eq!(slice["endpoints"].as_array().unwrap().len(), 2);
    }
}
