//! Walks every history of a machine.

use std::collections::{HashMap, VecDeque};

use super::machine::{CASTS, Cast, Rules, State, successors};

/// What an exploration found.
#[derive(Default)]
pub struct Explored {
    pub states: usize,
    pub activations: usize,
    pub fault: Option<(&'static str, Vec<String>)>,
}

/// Breadth first, so that a fault comes with a shortest history.
pub fn explore(rules: &Rules) -> Explored {
    let mut all = Explored::default();
    for cast in &CASTS {
        let one = explore_cast(rules, cast);
        all.states += one.states;
        all.activations += one.activations;
        if one.fault.is_some() {
            all.fault = one.fault;
            break;
        }
    }
    all
}

fn explore_cast(rules: &Rules, cast: &Cast) -> Explored {
    let mut states = vec![State::initial(cast)];
    let mut known = HashMap::from([(State::initial(cast), 0_usize)]);
    let mut came_from: Vec<(usize, String)> = vec![(0, String::new())];
    let mut queue = VecDeque::from([0_usize]);
    let mut activations = 0;
    while let Some(at) = queue.pop_front() {
        assert!(states.len() < 2_000_000, "too many states to explore");
        let state = states[at].clone();
        if let Some(fault) = state.fault {
            let mut history = Vec::new();
            let mut at = at;
            while at != 0 {
                history.push(came_from[at].1.clone());
                at = came_from[at].0;
            }
            history.reverse();
            return Explored {
                states: states.len(),
                activations,
                fault: Some((fault, history)),
            };
        }
        activations += usize::from(state.activated());
        for (action, next) in successors(&state, rules) {
            if !known.contains_key(&next) {
                known.insert(next.clone(), states.len());
                queue.push_back(states.len());
                states.push(next);
                came_from.push((at, action));
            }
        }
    }
    Explored {
        states: states.len(),
        activations,
        fault: None,
    }
}
