//! Makes up for state of an earlier run that is lost while its flows are not: another layout has the map in another
//! format, or the pin was removed while no agent ran.
//!
//! Nothing tells what the map held, so the state is assumed that fits every flow. It costs lookups; any other would break
//! flows.

use lb_common::addr::Port;
use lb_common::config::{NodeSettings, ServiceRanges, Settings};
use tracing::warn;

use crate::maps::{Error, Maps};
use crate::node::settings::usual_ports_of_translated_sources;
use crate::random;
use crate::reconcile::Op;

/// Replaces lost state. Call it before the maps are read, and before any program that uses them is attached.
///
/// `is_upgrading`: programs of another layout serve, whose flows are copied again later.
pub(super) fn replace(maps: &mut Maps, is_upgrading: bool) -> Result<(), Error> {
    // The first settings that an agent writes have this port.
    let has_settings = maps.settings()?.node.answer_port_high.get() != 0;
    let has_backends = maps.has_backends_in_use()?;
    if has_settings && has_backends {
        return Ok(());
    }
    let has_flows = maps.flows().exist()?;
    if !has_backends && has_flows {
        warn!("filter of backends in use is lost, but not their flows: every answer is looked up");
        maps.mark_all_in_use()?;
    }
    if !has_settings && (has_flows || is_upgrading) {
        warn!("settings of the earlier run are lost, but not its flows: they may have any source");
        let settings = unknown(random::number() as u32);
        maps.apply(&Op::PutSettings(Box::new(settings)))?;
    }
    Ok(())
}

/// Returns the settings to continue from if those of the earlier run are not known: flows may be masqueraded at pods,
/// and have the usual ports.
///
/// `epoch` is a random number: the count of removed frontends must not meet the number that a flow of the earlier run
/// has, which would count as current after its frontend was removed.
pub(super) fn unknown(epoch: u32) -> Settings {
    let ports = usual_ports_of_translated_sources();
    let node = NodeSettings {
        flags: Settings::MASQUERADED_PODS,
        answer_port_low: Port::new(*ports.start()),
        answer_port_high: Port::new(*ports.end()),
        ..NodeSettings::default()
    };
    let services = ServiceRanges { frontends_epoch: epoch, ..ServiceRanges::default() };
    Settings { node, services, ..Settings::default() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::reconcile::{Actual, Limits, Reconciler};

    #[test]
    fn count_of_removed_frontends_goes_on_from_the_assumed_one() {
        let limits = Limits { services: 9, backends: 9, lines: 9, sources: 9 };
        let actual = Actual { settings: unknown(7), ..Actual::default() };
        let mut reconciler = Reconciler::adopt(limits, actual, Duration::ZERO);
        let ops = reconciler.set_service_cidrs(&[]);
        let [Op::PutSettings(settings)] = ops.as_slice() else { panic!("{ops:?}") };
        assert_eq!(settings.services.frontends_epoch, 8);
        assert_eq!(settings.node, unknown(7).node);
    }

    /// The programs pass all packets until the agent has written the ports for new sources.
    #[test]
    fn assumed_settings_are_not_taken_for_whole() {
        assert_eq!(unknown(7).node.source_port_high, Port::NONE);
    }
}
