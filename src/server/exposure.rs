//! What must not be open to a network.

use super::ServeError;
use crate::config::Config;

/// Refuses to open development authentication, or a control endpoint without a chosen
/// token, to a network by accident.
///
/// # Errors
/// [`ServeError::InsecureAuth`], [`ServeError::ControlWithoutToken`]
pub fn check_exposure(config: &Config) -> Result<(), ServeError> {
    if !config.listen.ip().is_loopback() && !config.auth.insecure_dev {
        return Err(ServeError::InsecureAuth(config.listen));
    }
    match config.control.listen.address() {
        Some(address) if config.control.token.get().is_none() && !address.ip().is_loopback() => {
            Err(ServeError::ControlWithoutToken(address))
        }
        _ => Ok(()),
    }
}

/// Refuses to let tests turn the clock of a server that a network can reach.
///
/// # Errors
/// [`ServeError::TestHooksExposed`], [`ServeError::TestHooksUnreachable`]
pub fn check_test_hooks(config: &Config) -> Result<(), ServeError> {
    let control = config.control.listen.address();
    let control = control.ok_or(ServeError::TestHooksUnreachable)?;
    match [config.listen, control]
        .into_iter()
        .find(|address| !address.ip().is_loopback())
    {
        None => Ok(()),
        Some(address) => Err(ServeError::TestHooksExposed(address)),
    }
}
