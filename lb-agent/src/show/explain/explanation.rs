//! The output of `explain`: a line for each fact about a packet, or the same in a format for programs.

use std::fmt::Write as _;

use lb_common::addr::Protocol;
use lb_common::config::Settings;
use lb_common::event::{Return, Verdict};
use lb_common::flow::Flow;
use lb_common::forward::{Next, Scratch, is_local_only};
use lb_common::service::{Backend, Flags, Frontend, Service};
use serde::Serialize;

use super::origin::PacketOrigin;
use super::remedy::{meaning, remedy};
use super::{ClientPacket, Passed};
use crate::cli::Output;
use crate::show::Error;
use crate::state_file::StateFile;
use crate::words;

/// The fate of a packet.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `pod`, `external` or `node`, and the interface.
    client: String,
    /// The frontend as in the maps, and the Service port by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    frontend: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    /// The policy that applies, and the number of endpoints under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_ranges: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity: Option<String>,
    /// Whether the packet begins a flow or belongs to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<String>,
    /// Where the backend is, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    backend_is: Option<&'static str>,
    /// The source address that the backend sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// Class and name of the verdict, as in the metrics.
    verdict: String,
    /// The verdict as text.
    meaning: &'static str,
    /// The change after which the packet would arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    /// Whether the packet reaches a backend.
    arrives: bool,
}

impl Explanation {
    /// Reports whether the packet reaches a backend.
    pub const fn arrives(&self) -> bool {
        self.arrives
    }

    /// Returns the explanation in an output format.
    pub fn print(&self, output: Output) -> Result<String, Error> {
        Ok(match output {
            Output::Table | Output::Wide => self.text(),
            Output::Json => serde_json::to_string_pretty(self)? + "\n",
            Output::Yaml => serde_saphyr::to_string(self)?,
            Output::Name => self.backend.clone().unwrap_or_default() + "\n",
        })
    }

    /// Returns a line for each fact.
    fn text(&self) -> String {
        let mut text = String::new();
        let backend =
            self.backend.as_ref().map(|at| format!("{at} {}", self.backend_is.unwrap_or_default()));
        let lines: [(&str, Option<&str>); 11] = [
            ("Client", Some(&self.client)),
            ("Frontend", self.frontend.as_deref()),
            ("Service", self.service.as_deref()),
            ("Policy", self.policy.as_deref()),
            ("Source ranges", self.source_ranges),
            ("Affinity", self.affinity.as_deref()),
            ("Flow", self.flow),
            ("Backend", backend.as_deref()),
            ("Source", self.source.as_deref()),
            ("Verdict", Some(&self.verdict)),
            ("Remedy", self.remedy.as_deref()),
        ];
        for (name, value) in lines {
            if let Some(value) = value {
                let _written = writeln!(text, "{name:<14} {}", value.trim_end());
            }
            if name == "Verdict" {
                let _written = writeln!(text, "{:<14} {}", "", self.meaning);
            }
        }
        text
    }
}

/// Returns the facts about a packet that was run.
pub(super) fn explain(
    settings: &Settings,
    state_file: &StateFile,
    origin: &PacketOrigin,
    asked: &ClientPacket,
    found: Option<(Frontend, Service)>,
    Passed { verdict, scratch }: &Passed,
) -> Explanation {
    let service = found.map(|(_, service)| service);
    let name = service.and_then(|service| state_file.names.get(&service.id));
    let arrives = matches!(
        verdict,
        Verdict::Translated(_) | Verdict::Redirected(_) | Verdict::Returned(Return::Hairpin)
    );
    // Only a flow that begins with this packet selects a backend; the place of a backend is known only then.
    let is_begun = matches!(scratch.next, Next::First | Next::Direct);
    let backend = arrives.then(|| {
        let to = &scratch.found.flow.to;
        words::endpoint(to.destination, to.destination_port).to_string()
    });
    let is_near = scratch.choice.backend.flags & Backend::LOCAL != 0;
    let place = if is_near { "on this node" } else { "on another node" };
    let backend_is = (arrives && scratch.next == Next::First).then_some(place);
    // A socket hook has chosen before any packet exists, so a packet to the frontend never leaves.
    let by_socket = asked.protocol == Protocol::TCP && origin.has_hooks(settings, service);
    let flow = arrives.then_some(match (by_socket, is_begun) {
        (true, _) => "none: connect(2) chooses a backend for each socket, this one is an example",
        (false, true) => "begins with this packet",
        (false, false) => "this packet belongs to a known flow",
    });
    Explanation {
        client: origin.words(),
        frontend: found.map(|(frontend, service)| {
            format!("{} {}", words::kind(service.flags), words::frontend(&frontend))
        }),
        service: service.map(|service| words::service(service.id, name.map(String::as_str))),
        policy: service.map(|service| policy(&service, scratch)),
        source_ranges: service.map(|service| {
            if service.flags.has(Flags::SOURCE_RANGES) { "restricted" } else { "any" }
        }),
        affinity: service.filter(|it| it.affinity != 0).map(|it| format!("{} s", it.affinity)),
        flow,
        backend,
        backend_is,
        source: arrives.then(|| source(scratch)),
        verdict: format!("{} {}", verdict.class(), verdict.name()),
        meaning: meaning(*verdict),
        remedy: remedy(*verdict, name, service.map(|service| service.flags)),
        arrives,
    }
}

fn policy(service: &Service, scratch: &Scratch) -> String {
    let is_local = is_local_only(service.flags, &scratch.choice.asker);
    let (name, set) =
        if is_local { ("Local", service.local) } else { ("Cluster", service.cluster) };
    format!("{name}, {} endpoints", set.members)
}

fn source(scratch: &Scratch) -> String {
    let to = &scratch.found.flow.to;
    if scratch.found.flow.flags & Flow::MASQUERADED != 0 {
        return "an address of this node, chosen where the packet leaves".to_owned();
    }
    words::endpoint(to.source, to.source_port).to_string()
}

#[cfg(test)]
mod tests;
