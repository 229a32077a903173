#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Sourced by devstack once for each phase, with the mode and the phase as arguments.

_XTRACE_GANTT_PLUGIN=$(set +o | grep xtrace)
set +o xtrace

source "$GANTT_DIR"/devstack/lib/gantt

if is_service_enabled gantt; then
    case "$1-$2" in
        stack-install)
            echo_summary "Installing Gantt"
            install_gantt
            ;;
        stack-post-config)
            echo_summary "Configuring Gantt"
            configure_gantt
            configure_nova_for_gantt
            create_gantt_accounts
            init_gantt
            ;;
        stack-extra)
            echo_summary "Starting Gantt"
            start_gantt
            ;;
        stack-test-config)
            # Only now devstack has discovered the hosts of Nova.
            start_gantt_nova_source
            if [[ "$GANTT_CHECK" == "True" ]]; then
                echo_summary "Checking Gantt"
                check_gantt
            fi
            ;;
        unstack-)
            stop_gantt
            ;;
        clean-)
            cleanup_gantt
            ;;
    esac
fi

$_XTRACE_GANTT_PLUGIN
