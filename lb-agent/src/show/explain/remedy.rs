//! The meaning of a verdict, and the change after which the packet would arrive.

use lb_common::event::{DropReason, PassReason, Return, Verdict};
use lb_common::service::Flags;

pub(super) const fn meaning(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass(reason) => reason.meaning(),
        Verdict::Translated(what) => what.meaning(),
        Verdict::Returned(why) => why.meaning(),
        Verdict::Redirected(what) => what.meaning(),
        Verdict::Drop(reason) => reason.meaning(),
    }
}

/// Returns the change after which the packet would arrive.
///
/// `flags` are those of the frontend, if one was found.
pub(super) fn remedy(
    verdict: Verdict,
    name: Option<&String>,
    flags: Option<Flags>,
) -> Option<String> {
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
        Verdict::Returned(Return::NoBackend) => {
            format!("make an endpoint ready, and give its slice a port of this name: see {slices}")
        }
        Verdict::Returned(Return::UnknownPort) => {
            "use a port of the Service: `lb-agent lb list` shows all frontends".to_owned()
        }
        Verdict::Drop(DropReason::NoLocalBackend) => {
            format!(
                "start a ready endpoint on this node, or set traffic policy Cluster: see {slices}"
            )
        }
        Verdict::Drop(DropReason::SourceNotAllowed) => {
            "add the client to spec.loadBalancerSourceRanges".to_owned()
        }
        Verdict::Drop(DropReason::NoRoute) => {
            "add a route from this node to the backend".to_owned()
        }
        Verdict::Pass(PassReason::NotOurs) if flags.is_some_and(|flags| flags.has(Flags::HOST)) => {
            "a process of this node listens at this ClusterIP and gets the packet".to_owned()
        }
        // A frontend was found, so only a connection of this node with these ends precedes it (ADR 0035).
        Verdict::Pass(PassReason::NotOurs) if flags.is_some() => {
            "the packet is a reply in a connection of this node: use another source port".to_owned()
        }
        Verdict::Pass(PassReason::NotOurs) => {
            "use a frontend: `lb-agent lb list` shows all of them, `lb-agent status` shows problems"
                .to_owned()
        }
        Verdict::Pass(_) | Verdict::Drop(_) => "look up the verdict in docs/metrics.md".to_owned(),
        Verdict::Translated(_) | Verdict::Redirected(_) | Verdict::Returned(_) => return None,
    };
    Some(words)
}
