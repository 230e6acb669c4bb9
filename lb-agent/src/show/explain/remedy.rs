//! A verdict in words, and the change by which the packet would arrive.

use lb_common::event::{DropReason, PassReason, Turn, Verdict};

pub(super) const fn meaning(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass(reason) => reason.meaning(),
        Verdict::Translated(what) => what.meaning(),
        Verdict::TurnedRound(why) => why.meaning(),
        Verdict::Sent(what) => what.meaning(),
        Verdict::Drop(reason) => reason.meaning(),
    }
}

/// The change by which the packet would arrive.
pub(super) fn remedy(verdict: Verdict, name: Option<&String>) -> Option<String> {
    let service = name.and_then(|name| name.rsplit_once(':')).map(|(service, _)| service);
    let slices = service.and_then(|service| service.split_once('/')).map_or_else(
        || "the EndpointSlices of the Service".to_owned(),
        |(namespace, name)| {
            format!(
                "`kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={name}`"
            )
        },
    );
    let words = match verdict {
        Verdict::TurnedRound(Turn::NoBackend) => {
            format!("an endpoint must be ready, and its slice must have this port's name: see {slices}")
        }
        Verdict::TurnedRound(Turn::UnknownPort) => {
            "ask a port of the Service: `lb-agent lb list` has all frontends".to_owned()
        }
        Verdict::Drop(DropReason::NoLocalBackend) => {
            format!("a ready endpoint on this node, or traffic policy Cluster: see {slices}")
        }
        Verdict::Drop(DropReason::SourceNotAllowed) => {
            "add the client to spec.loadBalancerSourceRanges".to_owned()
        }
        Verdict::Drop(DropReason::NoRoute) => "a route from this node to the backend".to_owned(),
        Verdict::Pass(PassReason::NotOurs) => {
            "no frontend here: `lb-agent lb list` has all of them, `lb-agent status` says what is wrong".to_owned()
        }
        Verdict::Pass(_) | Verdict::Drop(_) => "docs/metrics.md has a row for each reason".to_owned(),
        Verdict::Translated(_) | Verdict::Sent(_) | Verdict::TurnedRound(_) => return None,
    };
    Some(words)
}
